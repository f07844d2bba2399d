"""Peak memory of a layout: every stage's states, activations in flight, transient peaks and overhead."""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from paraplan.foundation.arrays import Array, IntArray, combine
from paraplan.memory.in_flight import InFlightChunks, chunks_in_flight
from paraplan.memory.layers import layer_activations, layer_states
from paraplan.operators.layer_kinds import KINDS, StageLayers, front_dense, on_stage
from paraplan.question.layouts import RECOMPUTE, Layouts
from paraplan.question.models.spec import ModelSpec
from paraplan.question.problem import Problem

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
    """What the balancer takes: bytes of one layer of each kind (``operators.layer_kinds.KINDS``) on one rank."""

    static_NK: Array
    activation_NKR: Array
    """Bytes that one micro-batch keeps under each of :data:`paraplan.question.layouts.RECOMPUTE`."""
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
    peak, heaviest = costs.heaviest()
    return MemoryTable(peak, heaviest, costs.components(heaviest, on_stage(problem.model, layouts, heaviest)))


def peaks(problem: Problem, layouts: Layouts) -> Array:
    """Only :attr:`MemoryTable.peak_N`, in less time."""
    return _Costs(problem, layouts).peaks()


def per_stage(problem: Problem, layout: Layouts) -> StageMemory:
    """Every stage of the one row of ``layout``."""
    pp = int(layout.pp[0])
    rows = layout.take(np.zeros(pp, dtype=np.int64))
    stage = np.arange(pp, dtype=np.int64)
    parts = _Costs(problem, rows).components(stage, on_stage(problem.model, rows, stage))
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


def _candidates(model: ModelSpec, rows: Layouts) -> list[IntArray]:
    """Stages that can be the heaviest, for rows of distinct (pp, vpp)."""
    pp = rows.pp
    stages = [np.zeros_like(pp), pp - 1]
    if (pp > 1).any():
        stages.append(np.minimum(1, pp - 1))
        rest = model.layers % (pp * rows.vpp) % pp
        if rest.any():
            stages.append(np.clip(pp - 1 - rest, 0, pp - 1))
        dense = front_dense(model)
        if 0 < dense < model.layers:
            share = np.maximum(1, model.layers // (pp * rows.vpp))
            stages.append(np.minimum(-(-dense // share), pp - 1))
    return stages


GATHERED_LAYERS = 3
"""ZeRO-3 holds the layer at work and the next one, and the full gradient of the one behind."""


SWAPPED_LAYERS = 2
"""Where activations are swapped, the device holds those of the layer at work and of the one on its way."""


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
        self.level_rows = self.activation_rows * len(RECOMPUTE) + layouts.recompute

    def heaviest(self) -> tuple[Array, IntArray]:
        """Peak bytes and the stage that has them."""
        peak, heaviest = np.full(len(self.layouts), -np.inf), np.zeros(len(self.layouts), dtype=np.int64)
        for stage_S, inverse_N, total in self._candidate_totals():
            heavier = np.flatnonzero(total > peak)
            heaviest[heavier] = stage_S[inverse_N[heavier]]
            np.maximum(peak, total, out=peak)
        return peak + self._base(), heaviest

    def peaks(self) -> Array:
        """Only the peak bytes."""
        peak = np.full(len(self.layouts), -np.inf)
        for _, _, total in self._candidate_totals():
            np.maximum(peak, total, out=peak)
        return peak + self._base()

    def _base(self) -> Array:
        """Bytes on every stage whatever it holds."""
        return self.constant + (1 + self.fragmentation) * self.buffers()

    def _candidate_totals(self) -> Iterator[tuple[IntArray, npt.NDArray[np.intp], Array]]:
        """Each stage that can be the heaviest (by combination, and each layout's combination), and the bytes it holds
        beyond the base.

        What a stage holds for good depends on the degrees, what it keeps in flight on the rest: each is summed up once
        per combination, so that only adding the two runs over all layouts.
        """
        layouts = self.layouts
        holding = combine(self.state_rows, layouts.pp, layouts.vpp)
        keeping = combine(
            self.level_rows,
            layouts.recompute_layers + 1,
            layouts.pp,
            layouts.vpp,
            layouts.schedule,
            layouts.mb,
            layouts.swap_act,
        )
        states, dynamic = self._of(holding.rows_U), self._of(keeping.rows_U)
        for (stage_S, held_S), (stage_D, held_D) in zip(states.candidates(), dynamic.candidates(), strict=True):
            static = states.held_for_good(stage_S, held_S)[holding.inverse_N]
            yield stage_S, holding.inverse_N, static + dynamic.in_use(stage_D, held_D)[keeping.inverse_N]

    def candidates(self) -> Iterator[tuple[IntArray, StageLayers]]:
        """Each stage that can be the heaviest, and the layers it holds."""
        found = combine(self.layouts.pp, self.layouts.vpp)
        rows, inverse = self.layouts.take(found.rows_U), found.inverse_N
        for stage in _candidates(self.problem.model, rows):
            held = on_stage(self.problem.model, rows, stage)
            yield stage[inverse], StageLayers(held.dense[inverse], held.moe[inverse])

    def _of(self, rows: npt.NDArray[np.intp]) -> "_Costs":
        """The same costs for some of the rows; taken before anything was computed for all."""
        part = copy(self)
        part.layouts = self.layouts.take(rows)
        part.state_rows, part.activation_rows = self.state_rows[rows], self.activation_rows[rows]
        part.level_rows = self.level_rows[rows]
        return part

    @cached_property
    def in_flight(self) -> InFlightChunks:
        return chunks_in_flight(self.layouts)

    @cached_property
    def kept(self) -> dict[str, Array]:
        """Bytes one micro-batch keeps on the device in a layer of each kind that recomputes as the layout says."""
        return {kind: self._chosen(self.activations[kind].kept) for kind in self.states}

    @cached_property
    def layer_kept(self) -> dict[str, tuple[Array, Array]]:
        """For transformer layers what one that does not recompute keeps, and what recomputing saves of it."""
        stays = (self.layouts.swap_act == 0).astype(np.float64)
        found = {}
        for kind in self._layer_kinds:
            plain = self.activations[kind].kept[0][self.activation_rows]
            found[kind] = plain * stays, (plain - self.kept[kind]) * stays
        return found

    @cached_property
    def most(self) -> Array:
        """How many layers of a stage recompute at most."""
        chosen = self.layouts.recompute_layers
        return np.where(chosen < 0, np.inf, chosen * self.layouts.vpp)

    @cached_property
    def swapping(self) -> dict[str, Array]:
        """Activations of the layer at work and of the one on its way, where they are swapped, by kind of layer."""
        layouts = self.layouts
        if not layouts.swap_act.any():
            return {}
        found = {}
        for kind in self._layer_kinds:
            plain = self.activations[kind].kept[0][self.activation_rows]
            # With some layers that recompute, those that do not are the larger.
            largest = np.where(layouts.recompute_layers < 0, self.kept[kind], plain)
            found[kind] = np.where(layouts.swap_act == 1, SWAPPED_LAYERS * largest, 0.0)
        return found

    @cached_property
    def transient(self) -> dict[str, Array]:
        """Bytes that a layer's backward holds for a while, by kind."""
        return {kind: self._chosen(self.activations[kind].transient) for kind in self._layer_kinds}

    @property
    def _layer_kinds(self) -> list[str]:
        return [kind for kind in ("dense", "moe") if kind in self.states]

    def held_for_good(self, stage: IntArray, held: StageLayers) -> Array:
        """Bytes of parameters, gradients and optimizer on ``stage``, and of the layers that ZeRO-3 gathers."""
        layouts, model = self.layouts, self.problem.model
        first, last = stage == 0, stage == layouts.pp - 1
        counts = {
            "embedding": first.astype(np.int64),
            "dense": held.dense,
            "moe": held.moe,
            "mtp": last * model.mtp_layers,
            "head": last.astype(np.int64),
        }
        total = np.zeros(len(layouts))
        for kind, states in self.states.items():
            total += counts[kind] * states.total[self.state_rows]
        if (layouts.zero_stage == 3).any():
            gathered = {kind: count for kind, count in counts.items() if kind != "mtp"}
            total += (1 + self.fragmentation) * GATHERED_LAYERS * self._gathered(gathered)
        return total

    def in_use(self, stage: IntArray, held: StageLayers) -> Array:
        """Bytes of activations in flight on ``stage`` and of the backward's own tensors, losses included."""
        layouts, model = self.layouts, self.problem.model
        first, last = stage == 0, stage == layouts.pp - 1
        kept = first * self.kept["embedding"] + last * self.kept["head"]
        if model.mtp_layers:
            kept += last * model.mtp_layers * self.kept["mtp"]
        transient, swapping = last * self.activations["head"].transient[0][self.activation_rows], None
        for kind in self._layer_kinds:
            count = held.dense if kind == "dense" else held.moe
            if not count.any():
                continue
            kept += self._kept_of(kind, count)
            there = count > 0
            np.maximum(transient, there * self.transient[kind], out=transient)
            if self.swapping:
                own = there * self.swapping[kind]
                swapping = own if swapping is None else np.maximum(swapping, own)
        total = kept / layouts.vpp * self.in_flight.on(stage) + transient
        if swapping is not None:
            total += swapping
        return np.asarray((1 + self.fragmentation) * total)

    def _chosen(self, levels: tuple[Array, ...]) -> Array:
        """Bytes under each layout's own recompute level."""
        return np.asarray(np.stack(levels, axis=1).reshape(-1)[self.level_rows])

    def _kept_of(self, kind: str, count: IntArray) -> Array:
        """Bytes that one micro-batch keeps on the device in ``count`` layers of ``kind``."""
        plain, saved = self.layer_kept[kind]
        return np.asarray(count * plain - np.minimum(count, self.most) * saved)

    def _gathered(self, counts: dict[str, npt.NDArray[Any]]) -> Array:
        """The largest layer of a stage that ZeRO-3 gathers."""
        largest = np.zeros(len(self.layouts))
        for kind, count in counts.items():
            if kind in self.states and count.any():
                np.maximum(largest, (count > 0) * self.states[kind].gathered[self.state_rows], out=largest)
        return largest

    def components(self, stage: IntArray, held: StageLayers) -> dict[str, Array]:
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
        kept, transient, swapping = zero, zero, zero
        for kind, states in self.states.items():
            for name in ("parameters", "gradients", "optimizer"):
                parts[name] = parts[name] + counts[kind] * getattr(states, name)[self.state_rows]
            if kind not in self._layer_kinds:
                kept = kept + counts[kind] * self.kept[kind]
                continue
            kept = kept + self._kept_of(kind, counts[kind])
            transient = np.maximum(transient, (counts[kind] > 0) * self.transient[kind])
            if self.swapping:
                swapping = np.maximum(swapping, (counts[kind] > 0) * self.swapping[kind])
        parts["loss"] = last * self.activations["head"].transient[0][self.activation_rows]
        parts["activations"] = kept / layouts.vpp * self.in_flight.on(stage)
        # The loss's logits are gone before the first layer's backward brings its own tensors.
        parts["transient"] = np.maximum(transient - parts["loss"], 0.0)
        gathered = {kind: count for kind, count in counts.items() if kind != "mtp"}
        parts["buffers"] = GATHERED_LAYERS * self._gathered(gathered) + self.buffers() + swapping
        dynamic = parts["activations"] + parts["transient"] + parts["loss"] + parts["buffers"]
        parts["overhead"] = self.constant + self.fragmentation * dynamic
        return parts

    def buffers(self) -> Array:
        """Receive and send buffers of the pipeline, and the gathered input of a sequence-parallel block."""
        layouts, training = self.layouts, self.problem.training
        hidden = (2.0 * training.sequence_length * self.problem.model.hidden) * layouts.mbs / layouts.cp
        sharded = (layouts.sp == 1) & (layouts.tp > 1)
        pipeline = np.where(layouts.pp > 1, 2 * hidden / np.where(sharded, layouts.tp, 1), 0.0)
        return np.asarray(pipeline + np.where(sharded, hidden, 0.0))
