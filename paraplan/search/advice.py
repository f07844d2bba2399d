"""Why a search has no answer, and which changes of the question, each tried, would give one."""

import math
from collections.abc import Iterator
from dataclasses import replace

from paraplan import memory
from paraplan.question.constraints import parse_expression
from paraplan.question.layouts import RECOMPUTE, Layouts
from paraplan.question.problem import Problem
from paraplan.question.search_spec import SearchSpec, limit, word, words
from paraplan.search.rules import rules
from paraplan.search.space import barrier, blocks_of

GIB = 2.0**30

MOST_RELAXATIONS = 3

NEAR_BATCHES = 64
"""How far from the asked batch a legal one is looked for."""

MOST_TIMES = 1024
"""Times as many devices as asked that are tried where nothing fits."""


def nothing_legal(problem: Problem, search: SearchSpec) -> str:
    """Which rules the layouts that got furthest broke, why the first is there, and what would leave layouts."""
    counts = sorted(barrier(problem, search).items(), key=lambda item: -item[1])
    blame = "; ".join(f"{name!r} removed {count:,}" for name, count in counts[:3])
    reasons = {rule.name: rule.reason for rule in rules(problem, search)}
    needed = f"; needed: {reasons[counts[0][0]]}" if counts[0][0] in reasons else ""
    wider = [text for text, spec in _relaxed(search) if _leaves_some(problem, spec)][:MOST_RELAXATIONS]
    if not wider:
        wider = _near_batch(problem, search)
    offered = f"; layouts would be left by {', or by '.join(wider)}" if wider else ""
    return f"no layout satisfies every rule: {blame}{needed}{offered}"


def _leaves_some(problem: Problem, search: SearchSpec) -> bool:
    return next(blocks_of(problem, search), None) is not None


def _relaxed(search: SearchSpec) -> Iterator[tuple[str, SearchSpec]]:
    """The search without one of its restrictions each: constraints, then asked values."""
    for text in search.constraints:
        rest = tuple(other for other in search.constraints if other != text)
        yield f"dropping the constraint {text!r}", replace(search, constraints=rest)
    for name, values in search.candidates.items():
        if values is not None:
            rest_of = {key: given for key, given in search.candidates.items() if key != name}
            asked = ", ".join(str(word(name, value)) for value in values)
            yield f"other values of {name} than {asked}", replace(search, candidates=rest_of)


def _near_batch(problem: Problem, search: SearchSpec) -> list[str]:
    """The nearest global batch that leaves layouts."""
    batch = problem.training.global_batch
    for near in sorted(range(max(1, batch - NEAR_BATCHES), batch + NEAR_BATCHES + 1), key=lambda x: abs(x - batch)):
        asked = replace(problem, training=replace(problem.training, global_batch=near))
        if near != batch and _leaves_some(asked, search):
            return [f"a global batch of {near}"]
    return []


def nothing_fits(problem: Problem, search: SearchSpec, layout: Layouts, peak: float, candidates: int) -> str:
    """By how much the closest layout misses the budget, and what would help."""
    budget = limit(problem, search)
    parts = memory.estimate(problem, layout).components
    largest = max(parts, key=lambda name: float(parts[name][0]))
    name = words(layout.row(0), ("dp", "tp", "cp", "ep", "pp", "vpp", "mbs", "zero_stage", "recompute"))
    helping = _remedies(problem, search, peak)
    return (
        f"none of {candidates:,} layouts fits {budget / GIB:.2f} GiB a device: the closest ({name}) needs"
        f" {peak / GIB:.2f} GiB, {(peak - budget) / GIB:.2f} GiB too much, most of it {largest}"
        f" ({float(parts[largest][0]) / GIB:.2f} GiB); "
        + (f"what would help: {', or '.join(helping)}" if helping else f"{MOST_TIMES:,} times the devices are too few")
    )


def _remedies(problem: Problem, search: SearchSpec, peak: float) -> list[str]:
    """Changes of the question under which something fits."""
    found = [text for text, spec in _relaxed(search) if _fits(problem, spec)][:MOST_RELAXATIONS]
    if search.reserve_bytes and peak <= problem.cluster.memory_budget:
        found.append(f"less memory kept back than {search.reserve_bytes / GIB:.4g} GiB")
    more = _enough_devices(problem, search)
    if more:
        found.append(f"more devices: {more:,} ({more // problem.cluster.devices} times as many)")
    # Rounded up: a budget that is a little short would not do.
    needed = math.ceil((peak + search.reserve_bytes) / GIB * 100) / 100
    if needed * GIB <= problem.cluster.device.memory_bytes:
        found.append(f"a memory budget of {needed:.2f} GiB a device")
    if found or not (search.constraints or any(values is not None for values in search.candidates.values())):
        return found
    free = replace(search, candidates={}, constraints=())
    if _fits(problem, free):
        return ["dropping several restrictions of the search at once"]
    more = _enough_devices(problem, free)
    return [f"more devices: {more:,}, and dropping restrictions of the search"] if more else []


def _enough_devices(problem: Problem, search: SearchSpec) -> int | None:
    """The fewest of 2, 4, 8, … times the devices on which something fits."""
    times = 2
    while times <= MOST_TIMES:
        devices = times * problem.cluster.devices
        if _fits(replace(problem, cluster=replace(problem.cluster, devices=devices)), search):
            return devices
        times *= 2
    return None


LEAST_MEMORY = {"vpp": (1,), "mbs": (1,), "zero_stage": (0, 1, 3), "recompute": (RECOMPUTE.index("full"),)}
"""Of the automatic candidates those that take the least memory."""


def _fits(problem: Problem, search: SearchSpec) -> bool:
    """Whether a layout with the least memory that the search allows fits."""
    read = {name for text in search.constraints for name in parse_expression(text).names}
    if search.values("schedule") is not None:
        read.add("vpp")
    lean = {name: values for name, values in LEAST_MEMORY.items() if search.values(name) is None and name not in read}
    asked = replace(search, candidates={**search.candidates, **lean})
    most = limit(problem, search)
    return any(bool((memory.peaks(problem, block) <= most).any()) for block in blocks_of(problem, asked))
