"""Seconds of gradient reduction, parameter gathering and the optimizer step of one stage."""

from dataclasses import dataclass

import numpy as np

from paraplan.foundation.arrays import Array, combine
from paraplan.operators import collectives as communication
from paraplan.operators import parameters
from paraplan.operators.kernels import Kernels
from paraplan.operators.layer_kinds import front_dense
from paraplan.question.clusters.placement import place
from paraplan.question.layouts import Layouts
from paraplan.question.problem import Problem


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Unhidden seconds of one stage, arrays of shape (N,)."""

    reduce: Array
    """Sum the gradients over the replicas: scattered where the optimizer is sharded, else on every rank."""
    gather: Array
    """Gather the 16-bit parameters; zero at ZeRO stage 0."""
    optimizer: Array


def data_parallel(problem: Problem, layouts: Layouts) -> DataParallel:
    """Costs of an average stage with the embedding's share, once per combination of the degrees they depend on."""
    found = combine(
        layouts.dp, layouts.tp, layouts.cp, layouts.ep, layouts.etp, layouts.pp, layouts.zero_stage, layouts.op,
        layouts.swap_os,
    )  # fmt: skip
    rows = layouts.take(found.rows_U)
    dense, expert = stage_parameters(problem, rows)
    copies = (rows.dp * rows.cp).astype(np.float64)
    expert_copies = np.maximum(1.0, copies * rows.tp / (rows.ep * rows.etp))
    sharded = rows.zero_stage >= 1
    shard = np.where(sharded, rows.op, 1).astype(np.float64)
    expert_shard = np.where(sharded, np.minimum(shard, expert_copies), 1.0)
    reduce, gather = np.zeros(len(rows)), np.zeros(len(rows))
    framework = problem.framework
    # Every layer travels by itself: the unit of FSDP, about the size of Megatron-LM's buckets.
    pieces = np.maximum(problem.model.layers / rows.pp, 1.0)
    pieces = np.where(rows.zero_stage == 3, framework.gathers_per_layer, 1) * pieces
    for count, degree, over, stride in (
        (dense, copies, shard, rows.tp),
        (expert, expert_copies, expert_shard, rows.ep * rows.etp),
    ):
        if not count.any():
            continue
        inner = place(problem.cluster.levels, over, stride)
        outer = place(problem.cluster.levels, degree / over, stride * over)
        gradient_bytes = count * framework.gradient_reduce_bytes
        whole = communication.all_reduce(problem.cluster, outer, gradient_bytes / over, pieces)
        scattered = communication.reduce_scatter(problem.cluster, inner, gradient_bytes, pieces)
        reduce += np.where(over > 1, scattered, 0.0) + np.where(degree > over, whole, 0.0)
        gathered = communication.all_gather(problem.cluster, inner, count * 2.0, pieces)
        gather += np.where(over > 1, gathered, 0.0)
    # Gradient read, master weight and two moments read and written, 16-bit parameter written.
    moved = (dense / shard + expert / expert_shard) * (
        framework.gradient_bytes + 2 * framework.optimizer_bytes + framework.parameter_bytes
    )
    kernels = Kernels(problem.cluster.device, problem.training.precision)
    optimizer = kernels.bytes_seconds(moved)
    if rows.swap_os.any():
        # States come from the host and go back, both ways at once, behind the update itself.
        device = problem.cluster.device
        states = (dense / shard + expert / expert_shard) * framework.optimizer_bytes
        travel = states / (device.host_bandwidth * device.efficiency.host_link)
        optimizer = np.where(rows.swap_os == 1, np.maximum(optimizer, travel), optimizer)
    inverse = found.inverse_N
    return DataParallel(reduce[inverse], gather[inverse], optimizer[inverse])


def stage_parameters(problem: Problem, layouts: Layouts) -> tuple[Array, Array]:
    """Parameters on one rank of an average stage with an end of the model: dense ones, expert ones."""
    model = problem.model
    tp = layouts.tp.astype(np.float64)
    dense, expert = np.zeros(len(layouts)), np.zeros(len(layouts))
    for kind, count in (("dense", front_dense(model)), ("moe", model.layers - front_dense(model))):
        if not count:
            continue
        layer = parameters.layer(model, "dense" if kind == "dense" else "moe")
        replicated = layer.attention_replicated + layer.norms + layer.router
        dense += count / layouts.pp * ((layer.attention + layer.feed_forward) / tp + replicated)
        expert += count / layouts.pp * layer.experts / (layouts.ep * layouts.etp)
    ends = parameters.embedding(model) / tp
    both = ends + parameters.head(model) / tp
    return dense + np.where(layouts.pp == 1, both, ends), expert
