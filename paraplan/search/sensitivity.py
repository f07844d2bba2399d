"""Whether the winner stays the winner when the hardware is 10 % off, and which layout overtakes it if not."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from paraplan.foundation.errors import NoAnswerError
from paraplan.question.clusters.spec import ClusterSpec
from paraplan.question.layouts import Layouts
from paraplan.question.problem import Problem
from paraplan.search.ranking import FOLDED
from paraplan.search.search import SearchResult

STEP = 0.10

Answer = Callable[[Problem], SearchResult]
"""The search that found the winner, on other hardware."""

Step = Callable[[Problem, Layouts], tuple[float, bool]]
"""Seconds of a layout's step, as that search has them, and whether it fits."""


def sensitivity(problem: Problem, found: SearchResult, answer: Answer, step_of: Step) -> list[dict[str, str]]:
    """One line for each change of bandwidth, memory and efficiency by ±10 %."""
    winner = found.ranked.layouts.take(np.array([0]))
    name = _name(winner.row(0))
    lines = []
    for change, changed in _changes(problem):
        try:
            best = answer(changed).ranked
        except NoAnswerError:
            lines.append({"change": change, "effect": "nothing fits"})
            continue
        overtaking, now = _name(best.layouts.row(0)), float(best.step_time_N[0])
        before, fits = step_of(changed, winner)
        if overtaking == name:
            effect = f"the winner stays, {now / float(found.ranked.step_time_N[0]) - 1:+.1%}"
        elif not fits:
            effect = f"the winner no longer fits; {overtaking} is first at {now:.4g} s"
        else:
            effect = f"{overtaking} overtakes, {now:.4g} s against {before:.4g} s ({now / before - 1:+.1%})"
        lines.append({"change": change, "effect": effect})
    return lines


def _name(row: dict[str, int]) -> str:
    return " ".join(f"{key}{row[key]}" for key in FOLDED if row[key] > 1) or "dp1"


def _changes(problem: Problem) -> list[tuple[str, Problem]]:
    cluster = problem.cluster
    result = []
    for sign, ratio in (("-10 %", 1 - STEP), ("+10 %", 1 + STEP)):
        outer = (*cluster.levels[:-1], replace(cluster.levels[-1], bandwidth=cluster.levels[-1].bandwidth * ratio))
        inner = (replace(cluster.levels[0], bandwidth=cluster.levels[0].bandwidth * ratio), *cluster.levels[1:])
        result += [
            (f"network between nodes {sign}", replace(cluster, levels=outer)),
            (f"links inside a node {sign}", replace(cluster, levels=inner)),
            (f"memory budget {sign}", replace(cluster, memory_budget=cluster.memory_budget * ratio)),
            (f"achieved FLOP/s {sign}", _slower(cluster, ratio)),
        ]
    return [(name, replace(problem, cluster=changed)) for name, changed in result]


def _slower(cluster: ClusterSpec, ratio: float) -> ClusterSpec:
    peaks = {name: peak * ratio for name, peak in cluster.device.peak_flops.items()}
    return replace(cluster, device=replace(cluster.device, peak_flops=peaks))
