"""One balancing problem: which layers, on which chunks, under which limits; and what an assignment costs, exactly."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from paraplan.balance.layer_set import LayerSet, LayerType
from paraplan.balance.restrictions import Counts, Placing, Restrictions
from paraplan.foundation.arrays import Array
from paraplan.foundation.errors import InputError
from paraplan.question.balance_spec import BalanceSpec
from paraplan.schedules.orders import SPLIT_BACKWARD, B, F, W, model_order
from paraplan.simulate import InFlight, PipelineGraph, build_graph, in_flight, peak_memory


@dataclass(frozen=True)
class BalanceProblem:
    """Layers to place on a pipeline.

    Times are in the unit of the layers, memory in MiB. A *place* is a chunk in the order of the model: with plain
    chunks place ``v·pp + s`` is chunk ``v`` of stage ``s``, with a V schedule the second half runs back.
    """

    layers: LayerSet
    stages: int
    micro_batches: int
    chunks: int
    schedule: str
    memory_limit_mib: tuple[float, ...]
    """Of each stage."""
    constant_mib: tuple[float, ...] = ()
    """Held on each stage whatever it is given; empty: nothing."""
    slowness: tuple[float, ...] = ()
    """Time of each stage over the layers' own; empty: all equal."""
    p2p: float = 0.0
    batched: bool = False
    """Stages exchange in batches and wait for each other."""
    splits: int = 1
    spec: BalanceSpec = field(default_factory=BalanceSpec)

    @cached_property
    def graph(self) -> PipelineGraph:
        """The order of blocks; raises InputError where the schedule cannot run."""
        return build_graph(
            self.schedule, self.stages, self.micro_batches, self.chunks, self.splits, batched=self.batched
        )

    @cached_property
    def moments(self) -> list[InFlight]:
        return in_flight(self.graph)

    @cached_property
    def bodies(self) -> tuple[LayerType, ...]:
        """The layers to place: bodies, and the ends of the model that may move, in the order of the model."""
        ends = [layer.name for layer in self.layers.layers if layer.role != "BODY"]
        for name in self.spec.movable:
            if name not in ends:
                raise InputError(f"movable: {name!r} found, one of {', '.join(ends) or 'no layer'} is needed")
        return tuple(layer for layer in self.layers.layers if layer.role == "BODY" or layer.name in self.spec.movable)

    @cached_property
    def strategies(self) -> tuple[str, ...]:
        """Every strategy that some body may use, the ones asked for first in their order."""
        allowed = self.spec.strategies
        named = [name for name in allowed if any(name in layer.strategies for layer in self.bodies)]
        own = {name for layer in self.bodies for name in layer.strategies} - set(named) - set(STANDARD)
        # An end of the model has one way to be treated.
        own |= {next(iter(layer.strategies)) for layer in self.bodies if layer.role != "BODY"} - set(named)
        return tuple(named + sorted(own))

    @property
    def places(self) -> int:
        return self.stages * self.chunks

    @cached_property
    def stage_of(self) -> Counts:
        """Stage of every place."""
        return np.array([stage for _, stage in model_order(self.schedule, self.stages, self.chunks)], dtype=np.int64)

    @cached_property
    def chunk_of(self) -> Counts:
        """Chunk of every place."""
        return np.arange(self.places) // self.stages

    @cached_property
    def split_backward(self) -> bool:
        return self.schedule in SPLIT_BACKWARD

    @cached_property
    def costs(self) -> "Costs":
        return Costs.of(self)

    @cached_property
    def restrictions(self) -> Restrictions:
        """What the options fix and forbid; raises InputError where they contradict the layers."""
        return Restrictions.of(
            Placing(
                self.spec,
                self.bodies,
                self.strategies,
                self.costs.usable_TR,
                self.stages,
                self.chunks,
                self.stage_of,
                self.chunk_of,
            )
        )

    # --- what an assignment costs -------------------------------------------------------------------------------

    def durations(self, counts_TRC: npt.NDArray[np.floating] | Counts) -> Array:
        """Seconds per class of the graph for counts of (layer type, strategy, place)."""
        costs = self.costs
        forward = np.tensordot(costs.forward_T, counts_TRC.sum(axis=1), 1)
        backward = np.einsum("tr,trc->c", costs.backward_TR, counts_TRC)
        weight = np.tensordot(costs.weight_T, counts_TRC.sum(axis=1), 1)
        result = costs.fixed_durations.copy()
        speed = costs.slowness_P[self.stage_of]
        for operation, values in ((F, forward), (B, backward), (W, weight)):
            classes = (operation * self.chunks + self.chunk_of) * self.stages + self.stage_of
            result[classes] += values * speed
        return result / self.splits

    def peak_memory(self, counts_TRC: npt.NDArray[np.floating] | Counts) -> Array:
        """Peak MiB of every stage."""
        costs = self.costs
        static = costs.fixed_memory_P.copy()
        np.add.at(static, self.stage_of, np.tensordot(costs.parameter_T, counts_TRC.sum(axis=1), 1))
        activation = costs.fixed_activation_VP.copy()
        held = np.einsum("tr,trc->c", costs.activation_TR, counts_TRC)
        np.add.at(activation, (self.chunk_of, self.stage_of), held)
        transient = costs.fixed_transient_VP.copy()
        worst = np.where(counts_TRC > 0, costs.transient_TR[:, :, None], 0.0).max(axis=(0, 1))
        np.maximum.at(transient, (self.chunk_of, self.stage_of), worst)
        return peak_memory(self.moments, static, activation / self.splits, transient)

    def makespan(self, counts_TRC: npt.NDArray[np.floating] | Counts) -> float:
        """Exact makespan of an assignment."""
        return self.graph.makespan(self.durations(counts_TRC), self.p2p)


STANDARD = ("none", "select", "comm", "both", "full")


@dataclass(frozen=True, slots=True)
class Costs:
    """The problem's numbers as arrays over layer types ``T``, strategies ``R``, chunks ``V`` and stages ``P``."""

    count_T: Counts
    forward_T: Array
    backward_TR: Array
    """Backward with the strategy's extra; with a split backward only the input-gradient pass."""
    weight_T: Array
    parameter_T: Array
    activation_TR: Array
    transient_TR: Array
    usable_TR: npt.NDArray[np.bool_]
    fixed_durations: Array
    """Per class, what heads and tails take, before the division by sequence splits."""
    fixed_memory_P: Array
    fixed_activation_VP: Array
    fixed_transient_VP: Array
    limit_P: Array
    slowness_P: Array

    @staticmethod
    def of(problem: BalanceProblem) -> "Costs":
        bodies, strategies = problem.bodies, problem.strategies
        stages, chunks = problem.stages, problem.chunks
        shape = (len(bodies), len(strategies))
        backward, activation, transient = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        usable = np.zeros(shape, dtype=bool)
        share = 0.5 if problem.split_backward else 1.0
        for t, layer in enumerate(bodies):
            for r, name in enumerate(strategies):
                if name not in layer.strategies or (layer.role != "BODY" and usable[t].any()):
                    continue
                one = layer.strategies[name]
                usable[t, r] = True
                # A swap hides behind the layer's own compute in either direction; what sticks out delays the passes.
                shown = max(0.0, one.host_time - layer.forward) + max(0.0, one.host_time - layer.backward - one.extra)
                backward[t, r] = layer.backward * share + one.extra + shown
                activation[t, r], transient[t, r] = one.activation, one.transient
        for layer, row in zip(bodies, usable, strict=True):
            if not row.any():
                raise InputError(
                    f"layer {layer.name}: none of the strategies {', '.join(strategies)} has a memory; "
                    f"it has {', '.join(layer.strategies)}"
                )
        slowness = np.array(problem.slowness or (1.0,) * stages)
        fixed = np.zeros(3 * chunks * stages)
        memory = np.array(problem.constant_mib or (0.0,) * stages, dtype=np.float64)
        held, worst = np.zeros((chunks, stages)), np.zeros((chunks, stages))
        for role, place in (("HEAD", 0), ("TAIL", stages * chunks - 1)):
            s, v = int(problem.stage_of[place]), int(problem.chunk_of[place])
            for layer in problem.layers.of_role(role):
                if layer.name in problem.spec.movable:
                    continue
                one = next(iter(layer.strategies.values()))
                for operation, seconds in ((F, layer.forward), (B, layer.backward * share + one.extra)):
                    fixed[(operation * chunks + v) * stages + s] += layer.count * seconds * slowness[s]
                if problem.split_backward:
                    fixed[(W * chunks + v) * stages + s] += layer.count * layer.backward * share * slowness[s]
                memory[s] += layer.count * layer.parameter
                held[v, s] += layer.count * one.activation
                worst[v, s] = max(worst[v, s], one.transient)
        return Costs(
            np.array([layer.count for layer in bodies], dtype=np.int64),
            np.array([layer.forward for layer in bodies]),
            backward,
            np.array([layer.backward * (1 - share) for layer in bodies]),
            np.array([layer.parameter for layer in bodies]),
            activation,
            transient,
            usable,
            fixed,
            memory,
            held,
            worst,
            np.array(problem.memory_limit_mib, dtype=np.float64),
            slowness,
        )
