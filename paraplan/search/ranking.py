"""The fastest layouts that differ in what matters, kept while blocks stream by."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paraplan.foundation.arrays import Array
from paraplan.question.layouts import COLUMNS, Layouts
from paraplan.search.space import concatenate

FOLDED = ("dp", "tp", "cp", "ep", "pp", "mbs")
"""Layouts equal in these are one choice: of those that differ in the rest the best stands for all."""

LEAST_KEPT = 64
"""Distinct choices kept while streaming, where fewer are asked for."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """Layouts with their step time and peak memory, fastest first."""

    layouts: Layouts
    step_time_N: Array
    peak_N: Array

    def __len__(self) -> int:
        return len(self.layouts)

    def take(self, index: npt.NDArray[np.intp]) -> "Ranked":
        return Ranked(self.layouts.take(index), self.step_time_N[index], self.peak_N[index])


def order(layouts: Layouts, step_time_N: Array, devices_per_node: int = 8) -> npt.NDArray[np.intp]:
    """Positions from fastest to slowest.

    Times equal to nine digits are a tie: the one with less communication across nodes comes first (fewer ranks of tp,
    then cp, then ep outside a node), then the one with the smaller degrees, so that the order of the input never shows.
    """
    with np.errstate(divide="ignore"):
        digits = np.floor(np.log10(step_time_N))
    rounded = np.round(step_time_N / 10.0**digits, 9) * 10.0**digits
    spread = [
        np.maximum(extent / devices_per_node, 1.0)
        for extent in (layouts.tp, layouts.tp * layouts.cp, layouts.ep * layouts.etp)
    ]
    columns = [getattr(layouts, name) for name in COLUMNS]
    return np.lexsort((*reversed(columns), *reversed(spread), rounded))


def fold(ranked: Ranked) -> Ranked:
    """Of layouts equal in :data:`FOLDED` only the first, the order kept."""
    keys = np.stack([getattr(ranked.layouts, name) for name in FOLDED], axis=1)
    _, first = np.unique(keys, axis=0, return_index=True)
    return ranked.take(np.sort(first))


class TopLayouts:
    """The best distinct layouts of a stream of blocks, in constant memory."""

    def __init__(self, devices_per_node: int, asked: int) -> None:
        self.devices_per_node, self.most = devices_per_node, max(asked, LEAST_KEPT)
        self.kept: Ranked | None = None
        self.worst = np.inf

    def add(self, layouts: Layouts, step_time_N: Array, peak_N: Array) -> None:
        """Take in a block."""
        better = np.flatnonzero(step_time_N <= self.worst)
        if not len(better):
            return
        # Sorting is dear: look at the fastest rows only, at more of them while they are too few choices.
        count = 4 * self.most
        while True:
            rows = better
            if count < len(better):
                seconds = step_time_N[better]
                rows = better[seconds <= np.partition(seconds, count)[count]]
            block = Ranked(layouts.take(rows), step_time_N[rows], peak_N[rows])
            block = fold(block.take(order(block.layouts, block.step_time_N, self.devices_per_node)))
            if len(block) >= self.most or len(rows) == len(better):
                break
            count *= 4
        if self.kept is not None:
            block = Ranked(
                concatenate([self.kept.layouts, block.layouts]),
                np.concatenate([self.kept.step_time_N, block.step_time_N]),
                np.concatenate([self.kept.peak_N, block.peak_N]),
            )
            block = fold(block.take(order(block.layouts, block.step_time_N, self.devices_per_node)))
        self.kept = block.take(np.arange(min(len(block), self.most)))
        if len(block) >= self.most:
            self.worst = float(self.kept.step_time_N[-1])

    def best(self, count: int) -> Ranked:
        """The ``count`` best so far."""
        if self.kept is None:
            return Ranked(Layouts.of([]), np.zeros(0), np.zeros(0))
        return self.kept.take(np.arange(min(len(self.kept), count)))


def rank(layouts: Layouts, step_time_N: Array, top: int, devices_per_node: int = 8) -> npt.NDArray[np.intp]:
    """Positions of the ``top`` fastest distinct layouts, fastest first."""
    positions = order(layouts, step_time_N, devices_per_node)
    keys = np.stack([getattr(layouts, name)[positions] for name in FOLDED], axis=1)
    _, first = np.unique(keys, axis=0, return_index=True)
    return positions[np.sort(first)[:top]]
