"""Playing an assignment that is given: a plan of ours, or offset and recompute lists written by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paraplan.documents import read_document
from paraplan.errors import InputError
from paraplan.layouts import SCHEDULES
from paraplan.ppb.balance_spec import BalanceSpec
from paraplan.ppb.layer_set import layers_document, load_layers, read_layers
from paraplan.ppb.lists import read_lists
from paraplan.ppb.problem import BalanceProblem, Counts
from paraplan.published_plan import read_plan_json
from paraplan.simulator import Timeline, simulate

PROBLEM_KEYS = (
    "layers", "stages", "micro_batches", "interleave", "schedule", "memory_limit_mib", "constant_mib", "slowness",
    "p2p", "batched", "splits", "movable",
)  # fmt: skip
LIST_KEYS = ("offset", "recompute", "select_recompute", "select_comm_recompute", "assignment")


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


def read_plan(path: Path, schedule: str | None = None, rank: int = 1) -> Given:
    """Read what is to be played.

    Args:
        path: ``plan.json`` of the flow, the JSON of ``paraplan ppb``, or YAML with the keys of a problem (layers may be
            a name or path), ``offset`` and either ``assignment`` or MindFormers' three lists.
        schedule: Play under this schedule instead.
        rank: Which plan of a ``plan.json``.

    Raises:
        InputError: names the file, the field, what was found and what is needed.
    """
    document = read_document(path)
    where = str(path)
    if not isinstance(document, Mapping):
        raise InputError(f"{where}: {type(document).__name__} found, a mapping is needed")
    if "plans" in document:
        read_plan_json(document, rank, where)
        document = document["plans"][rank - 1]["pipeline"]
    return given_of(document, where, schedule)


def given_of(document: Mapping[str, Any], where: str, schedule: str | None = None) -> Given:
    """The problem and the assignment of a plan's document, or of hand-written lists.

    Raises:
        InputError: names ``where``, the field, what was found and what is needed.
    """
    given = {**document, **document["problem"]} if isinstance(document.get("problem"), Mapping) else document
    problem = read_problem(given, Path(where), schedule)
    return Given(problem, counts_of(given, problem, where))


def read_problem(given: Mapping[str, Any], path: Path, schedule: str | None = None) -> BalanceProblem:
    """The problem of a mapping with :data:`PROBLEM_KEYS`."""
    where = str(path)

    def whole(name: str, default: int | None = None) -> int:
        value = given.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            found = "missing" if value is None else f"{value!r} found"
            raise InputError(f"{where}: {name}: {found}, a whole number of at least 1 is needed")
        return value

    stages, chunks = whole("stages"), whole("interleave", 1)

    def per_stage(name: str, default: float | None) -> tuple[float, ...]:
        value = given.get(name, default)
        values = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value] * stages
        # Measured runs can leave a constant below 0.
        least = float("-inf") if name == "constant_mib" else 0.0
        good = all(isinstance(x, (int, float)) and not isinstance(x, bool) and x >= least for x in values)
        if value is None or not good:
            found = "missing" if value is None else f"{value!r} found"
            raise InputError(f"{where}: {name}: {found}, a number of at least 0 (or one for each stage) is needed")
        if len(values) not in (0, stages):
            raise InputError(
                f"{where}: {name}: {len(values)} numbers found, one for each of the {stages} stages is needed"
            )
        return tuple(float(x) for x in values)

    layers = given.get("layers")
    if isinstance(layers, str):
        beside = path.parent / layers
        found = load_layers(str(beside) if beside.is_file() else layers)
    elif isinstance(layers, Mapping):
        found = read_layers(layers, where)
    else:
        raise InputError(f"{where}: layers: {'missing' if layers is None else 'wrong type'}, a layer file is needed")
    name = schedule or given.get("schedule") or ("interleaved" if chunks > 1 else "1f1b")
    if name not in SCHEDULES:
        raise InputError(f"{where}: schedule: {name!r} found, one of {', '.join(SCHEDULES)} is allowed")
    p2p = given.get("p2p", 0.0)
    if isinstance(p2p, bool) or not isinstance(p2p, (int, float)) or p2p < 0:
        raise InputError(f"{where}: p2p: {p2p!r} found, a time of at least 0 is needed")
    return BalanceProblem(
        layers=found,
        stages=stages,
        micro_batches=whole("micro_batches"),
        chunks=chunks,
        schedule=str(name),
        memory_limit_mib=per_stage("memory_limit_mib", float("inf")) or (float("inf"),) * stages,
        constant_mib=per_stage("constant_mib", 0.0),
        slowness=per_stage("slowness", 1.0),
        p2p=float(p2p),
        batched=bool(given.get("batched", False)) and name in ("1f1b", "interleaved"),
        splits=whole("splits", 1),
        spec=BalanceSpec(schedule=name, format="any", movable=_movable(given, where)),  # type: ignore[arg-type]
    )


def _movable(given: Mapping[str, Any], where: str) -> tuple[str, ...]:
    names = given.get("movable", [])
    if not isinstance(names, Sequence) or isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{where}: movable: {names!r} found, a list of layer names is needed")
    return tuple(names)


def counts_of(given: Mapping[str, Any], problem: BalanceProblem, where: str) -> Counts:
    counts = np.zeros((len(problem.bodies), len(problem.strategies), problem.places), dtype=np.int64)
    places = {(int(v), int(s)): q for q, (v, s) in enumerate(zip(problem.chunk_of, problem.stage_of, strict=True))}
    assignment = given.get("assignment")
    if isinstance(assignment, Mapping) and assignment:
        for layer, by_strategy in assignment.items():
            t = next((i for i, body in enumerate(problem.bodies) if body.name == layer), None)
            if t is None or not isinstance(by_strategy, Mapping):
                known = ", ".join(body.name for body in problem.bodies)
                raise InputError(f"{where}: assignment.{layer}: no such layer; there are {known}")
            for strategy, table in by_strategy.items():
                rows = _table(table, problem, f"{where}: assignment.{layer}.{strategy}")
                if strategy not in problem.strategies or strategy not in problem.bodies[t].strategies:
                    if any(any(row) for row in rows):
                        raise InputError(f"{where}: assignment.{layer}.{strategy}: the layer has no such strategy")
                    continue
                for (v, s), q in places.items():
                    counts[t, problem.strategies.index(strategy), q] = rows[v][s]
    else:
        _from_lists(given, problem, where, counts, places)
    for t, layer in enumerate(problem.bodies):
        placed = int(counts[t].sum())
        if placed != layer.count:
            raise InputError(f"{where}: {layer.name}: {placed} layers placed, all {layer.count} are needed")
    return counts


def _from_lists(
    given: Mapping[str, Any], problem: BalanceProblem, where: str, counts: Counts, places: Mapping[tuple[int, int], int]
) -> None:
    """Offset and recompute lists; several body types fill the chunks in their order, strongest strategies first."""
    counted = [t for t, layer in enumerate(problem.bodies) if layer.role == "BODY"]
    total = sum(problem.bodies[t].count for t in counted)
    share = total // problem.places
    offset = _table(given.get("offset", 0), problem, f"{where}: offset")
    layers = [[share + x for x in row] for row in offset]
    if any(x < 0 for row in layers for x in row) or sum(map(sum, layers)) != total:
        raise InputError(
            f"{where}: offset: sums to {sum(map(sum, offset))}, {total - share * problem.places} is needed"
            f" ({total} layers on {problem.places} chunks), and no chunk may fall below 0 layers"
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
