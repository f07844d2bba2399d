"""From a layout to its balancing problem, by the same memory and time models as the search."""

from dataclasses import replace

import numpy as np

from paraplan import memory
from paraplan import time as performance
from paraplan.balance.layer_set import LayerSet, LayerType, Strategy
from paraplan.balance.problem import BalanceProblem
from paraplan.foundation.errors import InputError
from paraplan.memory.model import SWAPPED_LAYERS
from paraplan.operators.layer_kinds import KINDS
from paraplan.question.balance_spec import BalanceSpec
from paraplan.question.layouts import RECOMPUTE, SCHEDULES, Layouts
from paraplan.question.problem import Problem
from paraplan.schedules.orders import BATCHED

MIB = 2.0**20


def describe(problem: Problem, layout: Layouts, spec: BalanceSpec | None = None) -> BalanceProblem:
    """The balancing problem of the one row of ``layout``; times in seconds, memory in MiB.

    A multi-token-prediction layer and the head run on the last chunk, the embedding on the first. Strategies are the
    framework's recompute levels, or the layout's own level alone where its launch options know only one for all.
    """
    spec = spec or BalanceSpec()
    if spec.runtime is None:
        spec = replace(spec, runtime=problem.framework.schedules)
    if len(layout) != 1:
        raise InputError(f"layout: {len(layout)} found, one is needed")
    costs = memory.layer_memory(problem, layout)
    times = performance.layer_times(problem, layout)
    row = layout.row(0)
    growth = costs.dynamic_factor
    own = RECOMPUTE[row["recompute"]]
    allowed = set(RECOMPUTE)
    if not problem.framework.recompute_per_chunk:
        allowed = {own} if row["recompute_layers"] < 0 else {own, "none"}
    counts = {
        "embedding": 1,
        "dense": sum(group.count for group in problem.model.groups if group.kind == "dense"),
        "moe": sum(group.count for group in problem.model.groups if group.kind == "moe"),
        "mtp": problem.model.mtp_layers,
        "head": 1,
    }
    layers = []
    for k, kind in enumerate(KINDS):
        if not counts[kind]:
            continue
        role = {"embedding": "HEAD", "mtp": "TAIL", "head": "TAIL"}.get(kind, "BODY")
        strategies = {}
        for r, name in enumerate(RECOMPUTE):
            if (role != "BODY" and name != "none") or (role == "BODY" and name not in allowed):
                continue
            kept = float(costs.activation_NKR[0, k, r])
            transient = float(costs.transient_NKR[0, k, r])
            host_time = 0.0
            if row["swap_act"] and role == "BODY":
                device = problem.cluster.device
                host_time = kept / (device.host_bandwidth * device.efficiency.host_link)
                kept, transient = 0.0, transient + SWAPPED_LAYERS * kept
            strategies[name] = Strategy(
                kept * growth / MIB, float(times.recompute_NKR[0, k, r]), transient * growth / MIB, host_time
            )
        layers.append(
            LayerType(
                kind,
                role,  # type: ignore[arg-type]
                counts[kind],
                float(times.forward_NK[0, k]),
                float(times.backward_NK[0, k]),
                float(costs.static_NK[0, k]) / MIB,
                _useful(strategies) if role == "BODY" else strategies,
            )
        )
    stages = row["pp"]
    schedule = SCHEDULES[row["schedule"]]
    splits = 2 if schedule == "seq1f1b" else 1
    return BalanceProblem(
        layers=LayerSet(problem.model.name, tuple(layers)),
        stages=stages,
        micro_batches=row["mb"],
        chunks=row["vpp"],
        schedule=schedule,
        memory_limit_mib=(problem.cluster.memory_budget / MIB,) * stages,
        constant_mib=(float(costs.stage_constant_N[0]) / MIB,) * stages,
        p2p=float(times.p2p_N[0]) if stages > 1 else 0.0,
        batched=problem.framework.pipeline_exchange == "batched" and schedule in BATCHED,
        splits=splits,
        spec=spec,
    )


def _useful(strategies: dict[str, Strategy]) -> dict[str, Strategy]:
    """Without strategies that another one equals or beats in time, memory kept and transient memory."""
    kept: dict[str, Strategy] = {}
    for name, one in strategies.items():
        beaten = any(
            other.extra <= one.extra
            and other.activation <= one.activation
            and other.transient <= one.transient
            and other.host_time <= one.host_time
            for other in kept.values()
        )
        if not beaten:
            kept[name] = one
    return kept


def played_lists(problem: Problem, layout: Layouts, spec: BalanceSpec, where: str) -> tuple[float, float]:
    """Step seconds and peak bytes of one layout under the offset and recompute lists of ``spec``.

    Recompute lists that are not given leave the layout's own level on every layer.

    Raises:
        InputError: lists that do not fit the layout's chunks or the model's layers.
    """
    from paraplan.balance.play import counts_of

    lists = {
        "offset": spec.offset or 0,
        "recompute": spec.recompute or 0,
        "select_recompute": spec.select_recompute or 0,
        "select_comm_recompute": spec.select_comm_recompute or 0,
    }
    level = RECOMPUTE[int(layout.recompute[0])]
    if not (spec.recompute or spec.select_recompute or spec.select_comm_recompute):
        lists |= {"recompute": level == "full"}
        lists |= {"select_recompute": level in ("select", "both", "full")}
        lists |= {"select_comm_recompute": level in ("comm", "both", "full")}
    # The lists may name any level on any chunk.
    every = replace(problem, framework=replace(problem.framework, recompute_per_chunk=True))
    pipeline = describe(every, layout, replace(spec, strategies=RECOMPUTE))
    counts = counts_of(lists, pipeline, where)
    seconds = pipeline_seconds(problem, layout, pipeline.makespan(counts))
    return seconds, float(pipeline.peak_memory(counts).max()) * MIB


def pipeline_seconds(problem: Problem, layout: Layouts, makespan: float) -> float:
    """The simulated step: the pipeline's makespan and what the step does outside it."""
    return makespan + float(np.asarray(performance.layer_times(problem, layout).outside_N)[0])
