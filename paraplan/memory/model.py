"""Peak memory of a layout: every stage's states, activations in flight, transient peaks and overhead."""

from dataclasses import dataclass

import numpy as np

from paraplan.layer_kinds import KINDS, StageLayers, front_dense, on_stage
from paraplan.layouts import RECOMPUTE, IntArray, Layouts
from paraplan.memory.in_flight import chunks_in_flight
from paraplan.memory.layers import Array, layer_activations, layer_states
from paraplan.problem import Problem

COMPONENTS = ("parameters", "gradients", "optimizer", "activations", "transient", "loss", "buffers", "overhead")


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """Bytes on the heaviest stage of ``N`` layouts."""

    peak_N: Array
    stage_N: IntArray
    """The heaviest stage."""
    components: dict[str, Array]
    """Name (:data:`COMPONENTS`) to bytes on that stage, shape (N,); they sum to the peak."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes on every stage of one layout."""

    peak_P: Array
    components: dict[str, Array]


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """What the balancer takes: bytes of one layer of each of :data:`paraplan.layer_kinds.KINDS` on one rank."""

    static_NK: Array
    activation_NKR: Array
    """Bytes that one micro-batch keeps under each of :data:`paraplan.layouts.RECOMPUTE`."""
    transient_NKR: Array
    stage_constant_N: Array
    """Bytes on every stage whatever it holds: overhead and buffers."""
    dynamic_factor: float
    """Allocator losses: bytes reserved for each byte of activations."""


def estimate(problem: Problem, layouts: Layouts) -> MemoryTable:
    """Peak memory of every layout, on its heaviest stage.

    Of the stages only those that can be heaviest are computed: the first (embedding, dense layers, most micro-batches
    in flight), the second, the first without dense layers, the first with an extra layer, and the last (loss).
    """
    costs = _Costs(problem, layouts)
    best: dict[str, Array] | None = None
    peak, heaviest = np.zeros(len(layouts)), np.zeros(len(layouts), dtype=np.int64)
    for stage in _candidates(problem, layouts):
        parts = costs.stage(stage, on_stage(problem.model, layouts, stage))
        total = sum(parts.values(), np.zeros(len(layouts)))
        heavier = total > peak
        best = parts if best is None else {n: np.where(heavier, parts[n], best[n]) for n in COMPONENTS}
        peak, heaviest = np.where(heavier, total, peak), np.where(heavier, stage, heaviest)
    assert best is not None, "there is always a first stage"
    return MemoryTable(peak, heaviest, best)


def per_stage(problem: Problem, layout: Layouts) -> StageMemory:
    """Every stage of the one row of ``layout``."""
    pp = int(layout.pp[0])
    rows = layout.take(np.zeros(pp, dtype=np.int64))
    stage = np.arange(pp, dtype=np.int64)
    parts = _Costs(problem, rows).stage(stage, on_stage(problem.model, rows, stage))
    return StageMemory(sum(parts.values(), np.zeros(pp)), parts)


def layer_memory(problem: Problem, layouts: Layouts) -> LayerMemory:
    """Bytes of single layers, for balancing."""
    costs = _Costs(problem, layouts)
    shape = (len(layouts), len(KINDS))
    static = np.zeros(shape)
    activation, transient = np.zeros((*shape, len(RECOMPUTE))), np.zeros((*shape, len(RECOMPUTE)))
    for k, kind in enumerate(KINDS):
        if kind not in costs.states:
            continue
        static[:, k] = costs.states[kind].total[costs.state_rows]
        for r in range(len(RECOMPUTE)):
            activation[:, k, r] = costs.activations[kind].kept[r][costs.activation_rows]
            transient[:, k, r] = costs.activations[kind].transient[r][costs.activation_rows]
    return LayerMemory(static, activation, transient, costs.constant + costs.buffers(), 1 + costs.fragmentation)


def _candidates(problem: Problem, layouts: Layouts) -> list[IntArray]:
    pp = layouts.pp
    first = np.zeros_like(pp)
    stages = [first, pp - 1]
    if (pp > 1).any():
        stages.append(np.minimum(1, pp - 1))
        rest = problem.model.layers % (pp * layouts.vpp) % pp
        if rest.any():
            stages.append(np.clip(pp - 1 - rest, 0, pp - 1))
        dense = front_dense(problem.model)
        if 0 < dense < problem.model.layers:
            share = np.maximum(1, problem.model.layers // (pp * layouts.vpp))
            stages.append(np.minimum(-(-dense // share), pp - 1))
    return stages


class _Costs:
    """Layer costs gathered for ``N`` layouts, summed up for whichever stage is asked for."""

    def __init__(self, problem: Problem, layouts: Layouts) -> None:
        self.problem, self.layouts = problem, layouts
        efficiency = problem.cluster.device.efficiency
        self.constant = efficiency.overhead_bytes + problem.framework.reserved_bytes
        self.fragmentation = efficiency.fragmentation + problem.framework.fragmentation
        found, self.states = layer_states(problem, layouts)
        self.state_rows = found.inverse_N
        found, self.activations = layer_activations(problem, layouts)
        self.activation_rows = found.inverse_N
        self.levels = len(RECOMPUTE)

    def _kept(self, kind: str, held: IntArray) -> tuple[Array, Array]:
        """Bytes that one micro-batch keeps in ``held`` layers of ``kind``, and the transient peak of one of them."""
        layouts, activations = self.layouts, self.activations[kind]
        index = self.activation_rows * self.levels + layouts.recompute
        chosen = np.stack(activations.kept, axis=1).reshape(-1)[index]
        transient = np.stack(activations.transient, axis=1).reshape(-1)[index]
        kept = held * chosen
        if (layouts.recompute_layers >= 0).any():
            plain = activations.kept[0][self.activation_rows]
            recomputing = np.where(
                layouts.recompute_layers < 0, held, np.minimum(held, layouts.recompute_layers * layouts.vpp)
            )
            kept = recomputing * chosen + (held - recomputing) * plain
        return kept, np.where(held > 0, transient, 0.0)

    def stage(self, stage: IntArray, held: StageLayers) -> dict[str, Array]:
        """Components in bytes of one stage a layout that holds ``held``."""
        layouts, model = self.layouts, self.problem.model
        first, last = stage == 0, stage == layouts.pp - 1
        counts = {
            "embedding": first.astype(np.int64),
            "dense": held.dense,
            "moe": held.moe,
            "mtp": last * model.mtp_layers,
            "head": last.astype(np.int64),
        }
        zero = np.zeros(len(layouts))
        parts = dict.fromkeys(COMPONENTS, zero)
        kept, transient, gathered = zero, zero, zero
        for kind, states in self.states.items():
            count = counts[kind]
            if not count.any():
                continue
            for name in ("parameters", "gradients", "optimizer"):
                parts[name] = parts[name] + count * getattr(states, name)[self.state_rows]
            gathered = np.maximum(gathered, (count > 0) * states.gathered[self.state_rows])
            if kind == "head":
                loss = self.activations["head"].transient[0][self.activation_rows]
                parts["loss"] = last * loss
                kept = kept + last * self.activations["head"].kept[0][self.activation_rows]
                continue
            layer_kept, layer_transient = self._kept(kind, count)
            kept = kept + layer_kept
            transient = np.maximum(transient, layer_transient)
        parts["activations"] = kept / layouts.vpp * chunks_in_flight(layouts, stage)
        # The loss's logits are gone before the first layer's backward brings its own tensors.
        parts["transient"] = np.maximum(transient - parts["loss"], 0.0)
        # ZeRO-3 holds the layer at work and the next one, and the full gradient of the one behind.
        parts["buffers"] = 3 * gathered + self.buffers()
        dynamic = parts["activations"] + parts["transient"] + parts["loss"] + parts["buffers"]
        parts["overhead"] = self.constant + self.fragmentation * dynamic
        return parts

    def buffers(self) -> Array:
        """Receive and send buffers of the pipeline, and the gathered input of a sequence-parallel block."""
        layouts, training = self.layouts, self.problem.training
        tokens = layouts.mbs * (training.sequence_length / layouts.cp)
        hidden = 2.0 * tokens * self.problem.model.hidden
        sharded = (layouts.sp == 1) & (layouts.tp > 1)
        pipeline = np.where(layouts.pp > 1, 2 * hidden / np.where(sharded, layouts.tp, 1), 0.0)
        return pipeline + np.where(sharded, hidden, 0.0)
