"""What each stage keeps for backward, as counts that depend on the order of blocks alone."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paraplan.schedules.orders import B, F, W
from paraplan.simulate.graph import PipelineGraph

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class InFlight:
    """The moments of one stage that no other moment dominates; ``n`` of them."""

    counts_nV: Index
    """Micro-batches of each chunk whose activations are held."""
    running_n: Index
    """The chunk whose backward runs, with its transient memory; -1 where none does."""


def in_flight(graph: PipelineGraph) -> list[InFlight]:
    """For every stage the undominated moments.

    Activations of a block count from its forward to the end of its backward, or of its weight gradient where the
    schedule splits the backward.
    """
    return [_stage(graph, s) for s in range(graph.stages)]


def _stage(graph: PipelineGraph, stage: int) -> InFlight:
    last = W if any(block.operation == W for s, block in graph.blocks if s == stage) else B
    held = [0] * graph.chunks
    moments: set[tuple[tuple[int, ...], int]] = set()
    # Blocks of one stage appear in the graph in the order the stage runs them.
    for s, block in graph.blocks:
        if s != stage:
            continue
        if block.operation == F:
            held[block.chunk] += 1
            moments.add((tuple(held), -1))
        else:
            if block.operation == B:
                moments.add((tuple(held), block.chunk))
            if block.operation == last:
                held[block.chunk] -= 1
    kept = _undominated(moments)
    return InFlight(
        np.array([counts for counts, _ in kept], dtype=np.int64), np.array([chunk for _, chunk in kept], dtype=np.int64)
    )


def _undominated(moments: set[tuple[tuple[int, ...], int]]) -> list[tuple[tuple[int, ...], int]]:
    """Those that no other moment exceeds in every count with at least the same transient."""
    ordered = sorted(moments, key=lambda moment: (-sum(moment[0]), moment))
    kept: list[tuple[tuple[int, ...], int]] = []
    for counts, running in ordered:
        if not any(
            (other_running == running or running < 0) and all(a >= b for a, b in zip(other, counts, strict=True))
            for other, other_running in kept
        ):
            kept.append((counts, running))
    return kept
