"""Playing an assignment that is given: a plan of ours, or offset and recompute lists written by hand."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, StrictBool, StrictStr

from paraplan.balance.layer_set import layers_document, load_layers, read_layers
from paraplan.balance.lists import read_lists
from paraplan.balance.problem import BalanceProblem
from paraplan.balance.restrictions import Counts
from paraplan.foundation.documents import find_file, read_document
from paraplan.foundation.errors import InputError
from paraplan.foundation.records import build, refuse_unknown, shown
from paraplan.question.balance_spec import BalanceSpec
from paraplan.question.layouts import SCHEDULES
from paraplan.simulate import Timeline, simulate
from paraplan.simulate.pipeline_plan import PipelinePlan

LIST_KEYS = ("offset", "recompute", "select_recompute", "select_comm_recompute")
"""MindFormers' lists."""

ASSIGNMENT_KEYS = ("assignment", *LIST_KEYS)

Whole = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]


@dataclass(frozen=True, slots=True)
class _Written:
    """A problem as a file gives it; what depends on the number of stages is checked where that is known."""

    stages: Whole
    micro_batches: Whole
    layers: Any
    interleave: Whole = 1
    schedule: StrictStr | None = None
    memory_limit_mib: Any = math.inf
    constant_mib: Any = 0.0
    slowness: Any = 1.0
    p2p: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.0
    batched: StrictBool = False
    splits: Whole = 1
    movable: tuple[StrictStr, ...] = ()


@dataclass(frozen=True, slots=True)
class Given:
    """A problem and an assignment for it."""

    problem: BalanceProblem
    counts: Counts


def problem_document(problem: BalanceProblem) -> dict[str, Any]:
    """Everything about a problem in plain values."""
    return {
        "layers": layers_document(problem.layers),
        "stages": problem.stages,
        "micro_batches": problem.micro_batches,
        "interleave": problem.chunks,
        "schedule": problem.schedule,
        "memory_limit_mib": list(problem.memory_limit_mib),
        "constant_mib": list(problem.constant_mib),
        "slowness": list(problem.slowness),
        "p2p": problem.p2p,
        "batched": problem.batched,
        "splits": problem.splits,
        "movable": list(problem.spec.movable),
    }


def play(given: Given) -> Timeline:
    """Play an assignment."""
    return simulate(given.problem.graph, given.problem.durations(given.counts), given.problem.p2p)


def read_plans(path: Path, problem: BalanceProblem) -> list[tuple[str, Counts]]:
    """Hand-written assignments for one problem, named: a mapping of them, or one alone.

    Raises:
        InputError: names the file, the plan, the field, what was found and what is needed.
    """
    document = read_document(path)
    if not isinstance(document, Mapping) or not document:
        raise InputError(f"{path}: {shown(document)} found, a mapping of plans is needed")
    alone = any(key in ASSIGNMENT_KEYS for key in document)
    plans = {"manual": document} if alone else document
    found = []
    for name, given in plans.items():
        where = str(path) if alone else f"{path}: {name}"
        if not isinstance(given, Mapping):
            raise InputError(f"{where}: {shown(given)} found, a mapping with {', '.join(ASSIGNMENT_KEYS)} is needed")
        refuse_unknown(given, ASSIGNMENT_KEYS, where)
        found.append((str(name), counts_of(given, problem, where)))
    return found


def given_of(document: Any, where: str, schedule: str | None = None) -> Given:
    """The problem and the assignment of a plan's document, or of hand-written lists.

    Raises:
        InputError: names ``where``, the field, what was found and what is needed.
    """
    if not isinstance(document, Mapping):
        raise InputError(f"{where}: {type(document).__name__} found, a mapping is needed")
    lists = {key: document[key] for key in ASSIGNMENT_KEYS if key in document}
    folder = Path(where).parent
    if "problem" in document:
        if document.get("status") == "infeasible":
            raise InputError(f"{where}: status: 'infeasible' found, a plan with an assignment is needed")
        problem = read_problem(document["problem"], f"{where}: problem", folder, schedule)
        refuse_unknown(document, {*(field.name for field in fields(PipelinePlan)), *LIST_KEYS, "compared"}, where)
        if "assignment" in lists:
            # A plan's own tables say again, for people, what its assignment does.
            lists = {"assignment": lists["assignment"]}
    else:
        refuse_unknown(document, {*(field.name for field in fields(_Written)), *ASSIGNMENT_KEYS}, where)
        given = {key: value for key, value in document.items() if key not in ASSIGNMENT_KEYS}
        problem = read_problem(given, where, folder, schedule)
    return Given(problem, counts_of(lists, problem, where))


def read_problem(given: Any, where: str, folder: Path, schedule: str | None = None) -> BalanceProblem:
    """The problem of a mapping as :func:`problem_document` gives it.

    Args:
        given: The mapping; its layers may be a name, or a path from ``folder``.
        where: File, for messages.
        folder: Of the file.
        schedule: In place of the mapping's own.

    Raises:
        InputError: names ``where``, the field, what was found and what is needed.
    """
    if not isinstance(given, Mapping):
        raise InputError(f"{where}: {shown(given)} found, a mapping is needed")
    written = build(_Written, given, where)
    stages = written.stages

    def of_stages(name: str, **bounds: Any) -> tuple[float, ...]:
        value = getattr(written, name)
        if name == "memory_limit_mib" and isinstance(value, list):
            # JSON has no infinite numbers.
            value = [math.inf if one is None else one for one in value]
        return () if value == [] else per_stage(value, stages, f"{where}: {name}", **bounds)

    if isinstance(written.layers, str):
        beside = find_file([folder], [written.layers])
        layers = load_layers(str(beside or written.layers), where=f"{where}: layers")
    elif isinstance(written.layers, Mapping):
        layers = read_layers(written.layers, f"{where}: layers")
    else:
        raise InputError(f"{where}: layers: {shown(written.layers)} found, a layer file is needed")
    name = written.schedule if schedule is None else schedule
    if name is None:
        name = "interleaved" if written.interleave > 1 else "1f1b"
    if name not in SCHEDULES:
        field = f"{where}: schedule" if schedule is None else "--schedule"
        raise InputError(f"{field}: {name!r} found, one of {', '.join(SCHEDULES)} is allowed")
    problem = BalanceProblem(
        layers=layers,
        stages=stages,
        micro_batches=written.micro_batches,
        chunks=written.interleave,
        schedule=name,
        memory_limit_mib=of_stages("memory_limit_mib", least=0.0, above=True, most=math.inf) or (math.inf,) * stages,
        # Measured runs can leave a constant below 0.
        constant_mib=of_stages("constant_mib"),
        slowness=of_stages("slowness", least=0.0, above=True),
        p2p=written.p2p,
        batched=written.batched,
        splits=written.splits,
        spec=BalanceSpec(schedule=name, format="any", movable=written.movable),  # type: ignore[arg-type]
    )
    try:
        _ = problem.costs, problem.graph
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return problem


def per_stage(
    value: Any,
    stages: int,
    where: str,
    *,
    least: float = -math.inf,
    above: bool = False,
    most: float = sys.float_info.max,
) -> tuple[float, ...]:
    """A number for every stage, from one for all or a list of them.

    Args:
        value: As it was given.
        stages: Pipeline stages.
        where: File and field or option, for messages.
        least: The smallest number allowed.
        above: Whether ``least`` itself is not.
        most: The largest number allowed.

    Raises:
        InputError: another number of numbers, or a value that is none or out of bounds.
    """
    values = list(value) if isinstance(value, list) else [value] * stages
    if len(values) != stages:
        raise InputError(f"{where}: {len(values)} numbers found, one for each of the {stages} stages is needed")
    for one in values:
        # No comparison with NaN holds, and a whole number can be too large for a float.
        good = isinstance(one, (int, float)) and not isinstance(one, bool) and least <= one <= most
        if not good or (above and one == least):
            bound = f" {'above' if above else 'of at least'} {least:g}" if least > -math.inf else ""
            raise InputError(f"{where}: {shown(one)} found, a finite number{bound} is needed")
    return tuple(float(one) for one in values)


def counts_of(given: Mapping[str, Any], problem: BalanceProblem, where: str) -> Counts:
    """Layers of every type under every strategy on every place, from an assignment or MindFormers' lists.

    Raises:
        InputError: names ``where``, the field, what was found and what is needed.
    """
    counts = np.zeros((len(problem.bodies), len(problem.strategies), problem.places), dtype=np.int64)
    places = {(int(v), int(s)): q for q, (v, s) in enumerate(zip(problem.chunk_of, problem.stage_of, strict=True))}
    if "assignment" in given:
        _from_assignment(given, problem, where, counts, places)
    else:
        _from_lists(given, problem, where, counts, places)
    for t, layer in enumerate(problem.bodies):
        placed = int(counts[t].sum())
        if placed != layer.count:
            raise InputError(f"{where}: {layer.name}: {placed} layers placed, all {layer.count} are needed")
    held_TC = counts.sum(axis=1) > 0
    for t, layer in enumerate(problem.bodies[1:], 1):
        last, first = (int(q) for q in (np.flatnonzero(held_TC[t - 1])[-1], np.flatnonzero(held_TC[t])[0]))
        if first < last:
            raise InputError(
                f"{where}: {layer.name}: found on chunk {problem.chunk_of[first]} of stage {problem.stage_of[first]},"
                f" none before the last {problem.bodies[t - 1].name} (chunk {problem.chunk_of[last]} of stage"
                f" {problem.stage_of[last]}) is needed, which the model runs first"
            )
    return counts


def _from_assignment(
    given: Mapping[str, Any], problem: BalanceProblem, where: str, counts: Counts, places: Mapping[tuple[int, int], int]
) -> None:
    """Layer name to strategy to a table of counts, the types in the order of the model."""
    beside = [name for name in LIST_KEYS if name in given]
    if beside:
        raise InputError(f"{where}: {beside[0]}: found beside assignment, one of them is needed")
    assignment = given["assignment"]
    if not isinstance(assignment, Mapping) or not assignment:
        raise InputError(f"{where}: assignment: {shown(assignment)} found, a mapping of layer to strategies is needed")
    refuse_unknown(assignment, [layer.name for layer in problem.bodies], where, "assignment.")
    for t, layer in enumerate(problem.bodies):
        field = f"{where}: assignment.{layer.name}"
        by_strategy = assignment.get(layer.name, {})
        if not isinstance(by_strategy, Mapping):
            raise InputError(f"{field}: {shown(by_strategy)} found, a mapping of strategy to counts is needed")
        for strategy, table in by_strategy.items():
            rows = _table(table, problem, f"{field}.{strategy}")
            for (v, s), q in places.items():
                count, place = rows[v][s], f"chunk {v} of stage {s}"
                if not 0 <= count <= layer.count:
                    raise InputError(f"{field}.{strategy}: {count} found on {place}, 0 to {layer.count} is needed")
                if count and (strategy not in problem.strategies or strategy not in layer.strategies):
                    raise InputError(f"{field}.{strategy}: the layer has no such strategy")
                if count:
                    counts[t, problem.strategies.index(strategy), q] = count


def _from_lists(
    given: Mapping[str, Any], problem: BalanceProblem, where: str, counts: Counts, places: Mapping[tuple[int, int], int]
) -> None:
    """Offset and recompute lists; several body types fill the chunks in their order, strongest strategies first."""
    counted = [t for t, layer in enumerate(problem.bodies) if layer.role == "BODY"]
    total = sum(problem.bodies[t].count for t in counted)
    share = total // problem.places
    offset = _table(given.get("offset", 0), problem, f"{where}: offset")
    layers = [[share + x for x in row] for row in offset]
    if sum(map(sum, layers)) != total:
        raise InputError(
            f"{where}: offset: sums to {sum(map(sum, offset))}, {total - share * problem.places} is needed"
            f" ({total} layers on {problem.places} chunks)"
        )
    for v, s in places:
        if layers[v][s] < 0:
            raise InputError(
                f"{where}: offset: {offset[v][s]} found on chunk {v} of stage {s}, at least {-share} is needed"
                f" (a chunk's even share is {share})"
            )
    full, select, comm = (
        _table(given.get(name, 0), problem, f"{where}: {name}", layers)
        for name in ("recompute", "select_recompute", "select_comm_recompute")
    )
    strategies = read_lists(layers, full, select, comm, where)
    for t, layer in enumerate(problem.bodies):
        # Lists do not say where the ends of the model are: at its ends.
        if t not in counted:
            at = 0 if t < counted[0] else problem.places - 1
            counts[t, problem.strategies.index(next(iter(layer.strategies))), at] = layer.count
    waiting = iter(counted)
    t = next(waiting)
    left = problem.bodies[t].count
    for q in range(problem.places):
        v, s = int(problem.chunk_of[q]), int(problem.stage_of[q])
        for name in ("full", "both", "select", "comm", "none"):
            room = strategies[name][v][s]
            while room:
                if left == 0:
                    t = next(waiting)
                    left = problem.bodies[t].count
                if name not in problem.bodies[t].strategies:
                    raise InputError(f"{where}: {problem.bodies[t].name}: the layer file gives no memory for {name!r}")
                take = min(room, left)
                counts[t, problem.strategies.index(name), q] += take
                room, left = room - take, left - take


def _table(value: Any, problem: BalanceProblem, where: str, full: list[list[int]] | None = None) -> list[list[int]]:
    """A table ``[vpp][pp]`` from a table, a row (vpp = 1), a number for all, or true/false where ``full`` is given."""
    chunks, stages = problem.chunks, problem.stages
    if isinstance(value, bool) and full is not None:
        return [[x if value else 0 for x in row] for row in full]
    if value == 0:
        return [[0] * stages for _ in range(chunks)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        if value and not isinstance(value[0], Sequence):
            if chunks > 1:
                raise InputError(
                    f"{where}: one row found, {chunks} rows are needed (one a chunk: MindFormers repeats a single"
                    " row for every chunk after checking its sum, which is never meant)"
                )
            value = [value]
        good = len(value) == chunks and all(
            isinstance(row, Sequence)
            and len(row) == stages
            and all(isinstance(x, int) and not isinstance(x, bool) for x in row)
            for row in value
        )
        if good:
            return [list(row) for row in value]
    raise InputError(f"{where}: {str(value)[:60]} found, {chunks} rows of {stages} whole numbers are needed")
