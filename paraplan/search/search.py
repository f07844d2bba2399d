"""The ND search: enumerate, filter by memory, rank by time, in blocks."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from paraplan import memory
from paraplan import time as performance
from paraplan.foundation.arrays import Array
from paraplan.foundation.errors import InputError, NoAnswerError
from paraplan.memory import MemoryTable
from paraplan.question.layouts import Layouts
from paraplan.question.problem import Problem
from paraplan.question.search_spec import COMPONENT_OF_RATIO, SearchSpec, limit, word
from paraplan.search.advice import nothing_fits, nothing_legal
from paraplan.search.ranking import Ranked, TopLayouts
from paraplan.search.space import blocks_of
from paraplan.time import TimeTable

GIB = 2.0**30

Progress = Callable[[int, int, float], None]
"""Called after every block with the layouts seen, those that fit, and the best step so far (infinite: none)."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found; rows of the tables are the ranked layouts."""

    candidates: int
    fitting: int
    removed: dict[str, int]
    seconds: dict[str, float]
    ranked: Ranked
    times: TimeTable
    memories: MemoryTable
    stopped: bool = False
    """Whether it was interrupted; then the ranking is of what had been seen."""

    def to_json(self, problem: Problem) -> dict[str, Any]:
        """The published contract of ``paraplan nd --json``."""
        return {
            "candidates": self.candidates,
            "fitting": self.fitting,
            "seconds": self.seconds,
            "removed": self.removed,
            "ranked": [
                {"rank": i + 1, **layout_json(self.ranked.layouts.row(i)), **_rates(problem, self.ranked, i)}
                for i in range(len(self.ranked))
            ],
        }


def layout_json(row: Mapping[str, int]) -> dict[str, Any]:
    """A layout with its words spelled out."""
    return {name: word(name, value) for name, value in row.items()}


def _rates(problem: Problem, ranked: Ranked, i: int) -> dict[str, float]:
    step = ranked.step_time_N[i : i + 1]
    return {
        "step_time_s": float(step[0]),
        "tokens_per_s_per_device": float(performance.tokens_per_second_per_device(problem, step)[0]),
        "mfu": float(performance.mfu(problem, step)[0]),
        "peak_memory_gib": float(ranked.peak_N[i]) / GIB,
    }


def search(
    problem: Problem, search_spec: SearchSpec, progress: Progress | None = None, top: int | None = None
) -> SearchResult:
    """Find the fastest layouts that fit.

    Raises:
        InputError: no layout is legal; says which rules are in the way.
        NoAnswerError: none fits; says by how much and what would help.
    """
    asked = search_spec.top if top is None else top
    best = TopLayouts(problem.cluster.device.devices_per_node, asked)
    seconds = dict.fromkeys(("enumerate", "memory", "performance", "total"), 0.0)
    removed: dict[str, int] = {}
    closest = _Closest()
    candidates = fitting = 0
    stopped = False
    began = mark = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal mark
        now = time.perf_counter()
        seconds[name] += now - mark
        mark = now

    try:
        for block in blocks_of(problem, search_spec, removed):
            lap("enumerate")
            candidates += len(block)
            peak_N = memory.peaks(problem, block)
            fits = peak_N <= limit(problem, search_spec)
            lap("memory")
            if fits.any():
                kept = block.take(fits)
                fitting += len(kept)
                best.add(kept, ranked_step_times(problem, search_spec, kept, best.worst), peak_N[fits])
            else:
                closest.add(block, peak_N)
            lap("performance")
            if progress is not None:
                progress(candidates, fitting, float(best.kept.step_time_N[0]) if best.kept else float("inf"))
    except KeyboardInterrupt:
        if not fitting:
            raise
        stopped = True
    seconds["total"] = time.perf_counter() - began
    if not candidates:
        raise InputError(nothing_legal(problem, search_spec))
    if not fitting:
        assert closest.layout is not None, "a candidate was seen"
        raise NoAnswerError(nothing_fits(problem, search_spec, closest.layout, closest.peak, candidates))
    ranked = best.best(asked)
    return SearchResult(
        candidates,
        fitting,
        removed,
        {name: round(value, 6) for name, value in seconds.items()},
        ranked,
        predicted(problem, search_spec, ranked.layouts),
        memory.estimate(problem, ranked.layouts),
        stopped,
    )


def filter_memory(problem: Problem, layouts: Layouts, search_spec: SearchSpec) -> tuple[Layouts, Array]:
    """The layouts that fit and their peak memory in bytes.

    Raises:
        NoAnswerError: none fits.
    """
    if not len(layouts):
        raise InputError("no layout satisfies every rule; see the counts of what each rule removed")
    kept, peaks = [], []
    least, closest = np.inf, 0
    for start in range(0, len(layouts), BLOCK):
        block = layouts.take(slice(start, start + BLOCK))
        peak_N = memory.peaks(problem, block)
        if peak_N.min() < least:
            least, closest = float(peak_N.min()), start + int(peak_N.argmin())
        fits = peak_N <= limit(problem, search_spec)
        kept.append(start + np.flatnonzero(fits))
        peaks.append(peak_N[fits])
    rows = np.concatenate(kept)
    if not len(rows):
        nearest = layouts.take(np.array([closest]))
        raise NoAnswerError(nothing_fits(problem, search_spec, nearest, least, len(layouts)))
    return layouts.take(rows), np.concatenate(peaks)


BLOCK = 1 << 16


def ranked_step_times(problem: Problem, search_spec: SearchSpec, layouts: Layouts, above: float = np.inf) -> Array:
    """Seconds of a step with every layout, as :func:`predicted` has them.

    Where nothing is recalibrated, steps beyond ``above`` seconds may be infinite.
    """
    if not search_spec.recalibration:
        return performance.step_times(problem, layouts, above)
    return predicted(problem, search_spec, layouts).step_time_N


def predicted(problem: Problem, search_spec: SearchSpec, layouts: Layouts) -> TimeTable:
    """The step of every layout and where its time goes, each component times its recalibration ratio."""
    times = performance.estimate(problem, layouts)
    if not search_spec.recalibration:
        return times
    components = recalibrated(times.components, search_spec.recalibration)
    change = sum(components[name] - times.components[name] for name in components)
    return TimeTable(times.step_time_N + change, components)


Seconds = TypeVar("Seconds", float, Array)


def recalibrated(components: Mapping[str, Seconds], ratios: Mapping[str, float]) -> dict[str, Seconds]:
    """Seconds by component, each times its ratio; what a simulation shows as imbalance the model counts as bubble."""
    factors = {COMPONENT_OF_RATIO[name]: ratio for name, ratio in ratios.items()}
    factors["imbalance"] = factors.get("bubble", 1.0)
    return {name: seconds * factors.get(name, 1.0) for name, seconds in components.items()}


def ratios_text(ratios: Mapping[str, float]) -> str:
    """What a recalibration multiplies, for people."""
    return ", ".join(f"{name} × {ratio:g}" for name, ratio in ratios.items())


class _Closest:
    """The layout nearest to fitting."""

    def __init__(self) -> None:
        self.layout: Layouts | None = None
        self.peak = np.inf

    def add(self, layouts: Layouts, peak_N: Array) -> None:
        i = int(peak_N.argmin())
        if peak_N[i] < self.peak:
            self.layout, self.peak = layouts.take(np.array([i])), float(peak_N[i])
