"""The ND search: enumerate, filter by memory, rank by time, in blocks."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paraplan import memory, performance
from paraplan.errors import InputError, NoAnswerError
from paraplan.layouts import CONTEXT_KINDS, RECOMPUTE, SCHEDULES, Layouts
from paraplan.memory import MemoryTable
from paraplan.nd.ranking import Array, Ranked, TopLayouts
from paraplan.nd.rules import rules
from paraplan.nd.search_spec import SearchSpec
from paraplan.nd.space import blocks_of
from paraplan.performance import TimeTable
from paraplan.problem import Problem

GIB = 2.0**30

COMPONENT_OF_RATIO = {
    "COMPUTE": "compute",
    "DP_COMM": "dp_comm",
    "MP_COMM": "tp_comm",
    "EP_COMM": "ep_comm",
    "CP_COMM": "cp_comm",
    "PP_COMM": "pp_comm",
    "BUBBLE": "bubble",
}
"""A recalibration file's names for the time components."""

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


def layout_json(row: dict[str, int]) -> dict[str, Any]:
    """A layout with its words spelled out."""
    return {
        **row,
        "recompute": RECOMPUTE[row["recompute"]],
        "schedule": SCHEDULES[row["schedule"]],
        "cp_kind": CONTEXT_KINDS[row["cp_kind"]],
    }


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
        raise InputError(nothing_legal(problem, search_spec, removed))
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
        performance.estimate(problem, ranked.layouts),
        memory.estimate(problem, ranked.layouts),
        stopped,
    )


def limit(problem: Problem, search_spec: SearchSpec) -> float:
    """Bytes a layout may use: the budget less what is kept back for balancing."""
    return problem.cluster.memory_budget - search_spec.reserve_bytes


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
    """Seconds of a step with every layout, each component times its recalibration ratio.

    Where nothing is recalibrated, steps beyond ``above`` seconds may be infinite.
    """
    if not search_spec.recalibration:
        return performance.step_times(problem, layouts, above)
    table = performance.estimate(problem, layouts)
    total = table.step_time_N.copy()
    for name, ratio in search_spec.recalibration.items():
        total += (ratio - 1) * table.components[COMPONENT_OF_RATIO[name]]
    return total


class _Closest:
    """The layout nearest to fitting."""

    def __init__(self) -> None:
        self.layout: Layouts | None = None
        self.peak = np.inf

    def add(self, layouts: Layouts, peak_N: Array) -> None:
        i = int(peak_N.argmin())
        if peak_N[i] < self.peak:
            self.layout, self.peak = layouts.take(np.array([i])), float(peak_N[i])


def nothing_legal(problem: Problem, search_spec: SearchSpec, removed: dict[str, int]) -> str:
    """Which rules left nothing, those that removed most first, why the first is there, and what would leave layouts."""
    counts = sorted(((count, name) for name, count in removed.items() if count), reverse=True)
    blame = "; ".join(f"{name!r} removed {count:,}" for count, name in counts[:3])
    reasons = {rule.name: rule.reason for rule in rules(problem, search_spec)}
    needed = f"; needed: {reasons[counts[0][1]]}" if counts and counts[0][1] in reasons else ""
    wider = _relaxations(problem, search_spec)
    offered = f"; layouts would be left by {', or by '.join(wider)}" if wider else ""
    return f"no layout satisfies every rule: {blame or 'no degrees divide the devices'}{needed}{offered}"


MOST_RELAXATIONS = 3


def _relaxations(problem: Problem, search_spec: SearchSpec) -> list[str]:
    """Single restrictions of the question whose absence leaves layouts: constraints, asked values, the batch."""

    def leaves_some(asked: Problem, spec: SearchSpec) -> bool:
        return next(blocks_of(asked, spec), None) is not None

    found = []
    for text in search_spec.constraints:
        rest = tuple(other for other in search_spec.constraints if other != text)
        if leaves_some(problem, replace(search_spec, constraints=rest)):
            found.append(f"dropping the constraint {text!r}")
    for name, values in search_spec.candidates.items():
        if values is None:
            continue
        rest_of = {key: given for key, given in search_spec.candidates.items() if key != name}
        if leaves_some(problem, replace(search_spec, candidates=rest_of)):
            found.append(f"other values of {name} than {', '.join(str(value) for value in values)}")
    batch = problem.training.global_batch
    for near in sorted(range(max(1, batch - NEAR_BATCHES), batch + NEAR_BATCHES + 1), key=lambda x: abs(x - batch)):
        if found or near == batch:
            continue
        asked = replace(problem, training=replace(problem.training, global_batch=near))
        if leaves_some(asked, search_spec):
            found.append(f"a global batch of {near}")
    return found[:MOST_RELAXATIONS]


NEAR_BATCHES = 64
"""How far from the asked batch a legal one is looked for."""


def nothing_fits(problem: Problem, search_spec: SearchSpec, layout: Layouts, peak: float, candidates: int) -> str:
    """By how much the closest layout misses the budget, and what would help."""
    budget = limit(problem, search_spec)
    parts = memory.estimate(problem, layout).components
    largest = max(parts, key=lambda name: float(parts[name][0]))
    row = layout_json(layout.row(0))
    help_with = []
    if row["recompute"] != "full":
        help_with.append("more recompute (allow recompute: full)")
    if row["mbs"] > 1:
        help_with.append(f"a smaller micro-batch (now {row['mbs']})")
    if row["zero_stage"] < 3 and row["dp"] * row["cp"] > 1:
        help_with.append("more sharding (zero_stage 3)")
    static = sum(float(parts[name][0]) for name in ("parameters", "gradients", "optimizer"))
    rest = budget - (peak - static)
    if rest > 0:
        help_with.append(f"more devices (about {static / rest:.1f} times as many)")
    help_with.append(f"a memory budget of {peak / GIB:.2f} GiB a device")
    name = " ".join(
        f"{key}={row[key]}" for key in ("dp", "tp", "cp", "ep", "pp", "vpp", "mbs", "zero_stage", "recompute")
    )
    return (
        f"none of {candidates:,} layouts fits {budget / GIB:.2f} GiB a device: the closest ({name}) needs"
        f" {peak / GIB:.2f} GiB, {(peak - budget) / GIB:.2f} GiB too much, most of it {largest}"
        f" ({float(parts[largest][0]) / GIB:.2f} GiB); what would help: {', '.join(help_with)}"
    )
