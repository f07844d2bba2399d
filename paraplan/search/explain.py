"""Why one layout is not the answer: the rule that excludes it, what it lacks in memory, or where its time goes."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paraplan import memory
from paraplan.foundation.errors import InputError
from paraplan.question.layouts import COLUMNS, DEFAULTS, SCHEDULES, Layouts
from paraplan.question.problem import Problem
from paraplan.question.search_spec import SearchSpec, limit, word, words
from paraplan.search.ranking import Ranked
from paraplan.search.rules import Rule, rules
from paraplan.search.search import GIB, predicted, ratios_text


@dataclass(frozen=True, slots=True)
class Explanation:
    """One layout against the winner."""

    layout: dict[str, int]
    broken: tuple[Rule, ...]
    lines: tuple[str, ...]
    """For people."""


def complete(problem: Problem, given: Mapping[str, int], like: Mapping[str, int] | None = None) -> dict[str, int]:
    """A whole layout from some dimensions: the rest follows from the identities, from ``like``, or from defaults.

    Raises:
        InputError: an unknown dimension.
    """
    for name in given:
        if name not in COLUMNS:
            raise InputError(f"{name}: unknown dimension; allowed: {', '.join(COLUMNS)}")
    row = {
        **DEFAULTS,
        **{name: value for name, value in (like or {}).items() if name not in ("dp", "mb", "op")},
        **given,
    }
    devices, batch = problem.cluster.devices, problem.training.global_batch
    if "dp" not in given:
        row["dp"] = max(1, devices // (row["tp"] * row["cp"] * row["pp"]))
    if "mb" not in given:
        row["mb"] = max(1, batch // (row["dp"] * row["mbs"]))
    if "etp" not in given and (like is None or "tp" in given):
        row["etp"] = row["tp"] if problem.model.experts is None or row["ep"] == 1 else 1
    if "sp" not in given and like is None:
        row["sp"] = int(row["tp"] > 1 and problem.framework.sequence_parallel)
    if "sp" not in given and row["tp"] == 1:
        row["sp"] = 0
    copies = row["dp"] * row["cp"]
    if "zero_stage" not in given and like is None:
        row["zero_stage"] = int(copies > 1)
    if "op" not in given:
        row["op"] = copies if row["zero_stage"] else 1
    if "schedule" not in given:
        row["schedule"] = SCHEDULES.index("interleaved") if row["vpp"] > 1 else 0
    return {name: int(row[name]) for name in COLUMNS}


def explain(problem: Problem, search: SearchSpec, given: Mapping[str, int], winner: Ranked | None) -> Explanation:
    """Explain the layout that ``given`` and what ``search`` holds fixed complete to, next to the first of ``winner``.

    Both are timed by the model, each component times its recalibration ratio.
    """
    layout = complete(problem, {**search.fixed(), **given})
    table = Layouts.of([layout])
    columns = {name: getattr(table, name) for name in COLUMNS}
    broken = tuple(rule for rule in rules(problem, search) if not bool(rule.holds(columns)[0]))
    lines = [words(layout, COLUMNS)]
    for rule in broken:
        found = words(layout, sorted(rule.needs), ", ")
        lines.append(f"excluded by rule '{rule.name}' ({found}): {rule.reason}")
    for name, value in layout.items():
        asked = search.values(name)
        if asked is not None and value not in asked:
            allowed = ", ".join(str(word(name, one)) for one in asked)
            lines.append(f"not in the space: search.{name} allows {allowed}, not {word(name, value)}")
    if broken:
        return Explanation(layout, broken, tuple(lines))
    peaks = memory.estimate(problem, table)
    budget, peak = limit(problem, search), float(peaks.peak_N[0])
    parts = {name: float(value[0]) for name, value in peaks.components.items()}
    largest = sorted(parts, key=lambda name: -parts[name])
    if peak > budget:
        lines.append(
            f"does not fit: stage {int(peaks.stage_N[0])} needs {peak / GIB:.2f} GiB of {budget / GIB:.2f},"
            f" {(peak - budget) / GIB:.2f} too much; most of it {largest[0]} ({parts[largest[0]] / GIB:.2f} GiB)"
        )
    else:
        lines.append(f"fits: stage {int(peaks.stage_N[0])} needs {peak / GIB:.2f} GiB of {budget / GIB:.2f}")
    lines.append("memory, GiB: " + ", ".join(f"{name} {parts[name] / GIB:.2f}" for name in largest if parts[name] > 0))
    times = predicted(problem, search, table)
    scaled = f", recalibrated: {ratios_text(search.recalibration)}" if search.recalibration else ""
    lines.append(f"step {float(times.step_time_N[0]):.4g} s{scaled}")
    if winner is not None and len(winner):
        best = predicted(problem, search, winner.layouts.take(slice(1)))
        slower = float(times.step_time_N[0] / best.step_time_N[0] - 1)
        lines.append(
            f"{slower:+.1%} against the winner, {float(best.step_time_N[0]):.4g} s; by term, seconds (winner's):"
        )
        differences = {n: float(times.components[n][0] - best.components[n][0]) for n in times.components}
        for name in sorted(differences, key=lambda n: -abs(differences[n])):
            own, theirs = float(times.components[name][0]), float(best.components[name][0])
            if max(abs(own), abs(theirs)) > 0:
                lines.append(f"  {name:10} {own:9.4f} ({theirs:.4f}) {differences[name]:+.4f}")
    else:
        for name, seconds in times.components.items():
            if np.abs(seconds[0]) > 0:
                lines.append(f"  {name:10} {float(seconds[0]):9.4f} s")
    return Explanation(layout, broken, tuple(lines))
