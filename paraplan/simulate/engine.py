"""Plays a pipeline: when every block runs, how long the step takes, what every stage holds at its peak."""

from dataclasses import dataclass

import numpy as np

from paraplan.foundation.arrays import Array
from paraplan.schedules.orders import Block
from paraplan.simulate.graph import PipelineGraph
from paraplan.simulate.in_flight import InFlight
from paraplan.simulate.pipeline_plan import Bubble


@dataclass(frozen=True, slots=True)
class Timeline:
    """One played step; times in the unit of the durations."""

    graph: PipelineGraph
    start_n: Array
    end_n: Array
    makespan: float
    busy_P: Array
    """Time that each stage computes."""

    def stage_blocks(self, stage: int) -> list[tuple[Block, float, float]]:
        """Blocks of one stage with their start and end, in order."""
        return [
            (block, float(self.start_n[i]), float(self.end_n[i]))
            for i, (s, block) in enumerate(self.graph.blocks)
            if s == stage
        ]


def simulate(graph: PipelineGraph, durations: Array, p2p: float = 0.0) -> Timeline:
    """Play ``graph`` with ``durations`` per class and ``p2p`` a send."""
    ends = graph.ends(durations, p2p)
    spent = durations[graph.klass]
    busy = np.bincount(graph.klass % graph.stages, weights=spent, minlength=graph.stages)
    return Timeline(graph, ends - spent, ends, float(ends.max()), busy.astype(np.float64))


def peak_memory(
    moments: list[InFlight], static_P: Array, activation_VP: Array, transient_VP: Array | None = None
) -> Array:
    """Peak of every stage: what it holds for good plus the heaviest moment of its activations, shape (P,).

    Args:
        moments: From :func:`paraplan.simulate.in_flight.in_flight`.
        static_P: Held throughout.
        activation_VP: Held for each micro-batch of each chunk.
        transient_VP: Held while a backward of the chunk runs.
    """
    peaks = np.empty(len(moments))
    for s, moment in enumerate(moments):
        held = moment.counts_nV @ activation_VP[:, s]
        if transient_VP is not None:
            held = held + np.where(moment.running_n >= 0, transient_VP[moment.running_n, s], 0.0)
        peaks[s] = static_P[s] + held.max(initial=0.0)
    return peaks


def bubble(graph: PipelineGraph, durations: Array, p2p: float, plain_work_P: Array) -> Bubble:
    """``pp·makespan / work − 1``, split by taking one cause away after the other; work is without recomputation.

    Args:
        graph: The schedule.
        durations: Per class.
        p2p: Seconds a send.
        plain_work_P: Each stage's work without recomputation.

    ``ideal`` is what equal chunks without communication and recomputation would leave, ``imbalance`` what the real
    chunks add, ``recompute`` what recomputation adds to that, ``communication`` the rest.
    """
    stages, plain_work = graph.stages, float(plain_work_P.sum())
    if plain_work <= 0:
        return Bubble(0.0, 0.0, 0.0, 0.0, 0.0)
    blocks = np.bincount(graph.klass, minlength=graph.classes)
    busy = np.bincount(graph.klass % stages, weights=durations[graph.klass], minlength=stages)
    share = np.where(busy > 0, plain_work_P / np.where(busy > 0, busy, 1), 1.0)
    plain = durations * share[np.arange(graph.classes) % stages]
    operation = np.arange(graph.classes) // (graph.chunks * stages)
    even = np.zeros(graph.classes)
    for o in range(3):
        chosen = operation == o
        count = int(blocks[chosen].sum())
        if count:
            even[chosen] = float((plain * blocks)[chosen].sum()) / count
    total, silent, unrecomputed, ideal = (
        stages * graph.makespan(values, seconds) / plain_work - 1
        for values, seconds in ((durations, p2p), (durations, 0.0), (plain, 0.0), (even, 0.0))
    )
    return Bubble(total, ideal, unrecomputed - ideal, total - silent, silent - unrecomputed)
