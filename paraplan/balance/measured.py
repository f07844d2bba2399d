"""Layer memories from measured stage memories of dry runs, and the dry runs that determine them.

A stage of 1F1B that is neither first nor last holds, with ``n`` layers and ``min(m, pp − s)`` micro-batches in flight,

    parameter · n + in flight · Σ over strategies (layers · what a layer keeps) + constant,

linear in what is sought; the first and the last stage hold the ends of the model on top (docs/balancing.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paraplan.balance.layer_set import LARGEST, LayerSet, Strategy
from paraplan.balance.lists import read_lists
from paraplan.foundation.documents import read_document
from paraplan.foundation.errors import InputError
from paraplan.foundation.records import shown

Rows = list[list[int]]

STRATEGIES = ("none", "select", "comm", "both", "full")


@dataclass(frozen=True, slots=True)
class DryRuns:
    """Runs of one model on ``stages`` stages; outer lists run over the runs."""

    stages: int
    layers: int
    held: Rows
    """Layers of every stage."""
    strategies: list[dict[str, list[int]]]
    """Strategy to the layers of every stage."""
    head_mib: float
    """Of the first run's first stage."""
    tail_mib: float
    body: list[dict[int, float]]
    """Stage to MiB."""


@dataclass(frozen=True, slots=True)
class LayerMemories:
    """MiB of one layer and of the ends of the model."""

    parameter: float
    kept: Mapping[str, float]
    """Strategy to what one micro-batch keeps in a layer."""
    head: float
    tail: float
    constant: float
    """On every stage; 0 where the runs do not determine it."""
    worst_mib: float
    """The largest miss of a body stage."""


def read_dry_runs(path: Path) -> DryRuns:
    """Read ``pipeline_config``, ``recompute_config`` and ``memory_usage`` as the predecessor's users write them.

    Raises:
        InputError: names the file, the field, what was found and what is needed.
    """
    document = read_document(path)
    where = str(path)
    pipeline, recompute, memory = (
        _section(document, name, where) for name in ("pipeline_config", "recompute_config", "memory_usage")
    )
    stages, layers = (_whole(pipeline, name, f"{where}: pipeline_config") for name in ("pipeline_num", "num_layer"))
    if stages < 3:
        raise InputError(
            f"{where}: pipeline_config.pipeline_num: {stages} found, at least 3 is needed: layers are measured on the"
            " stages between the first and the last"
        )
    runs = len(pipeline["offset"]) if _nested(pipeline.get("offset")) else 1
    offset = _table(pipeline.get("offset", 0), runs, stages, f"{where}: pipeline_config.offset")
    held = [[layers // stages + x for x in row] for row in offset]
    for row in held:
        if sum(row) != layers or min(row) < 0:
            raise InputError(
                f"{where}: pipeline_config.offset: the stages hold {sum(row)} layers (least {min(row)}), {layers} and"
                " none below 0 are needed"
            )
    full, select, comm = (
        _table(recompute.get(name, False), runs, stages, f"{where}: recompute_config.{name}")
        for name in ("recompute", "select_recompute", "select_comm_recompute")
    )
    kinds = read_lists(held, full, select, comm, where)
    strategies = [{name: list(kinds[name][run]) for name in STRATEGIES} for run in range(runs)]
    bodies = _section(memory, "body_memories", f"{where}: memory_usage")
    ids, measured = bodies.get("stage_id"), bodies.get("memories")
    ids, measured = (value if _nested(value) else [value] for value in (ids, measured))
    body = []
    for run in range(runs):
        pairs = _pairs(ids, measured, run, f"{where}: memory_usage.body_memories")
        for stage in pairs:
            if not 0 < stage < stages - 1:
                raise InputError(
                    f"{where}: memory_usage.body_memories.stage_id: {stage} found, 1 to {stages - 2} is allowed"
                )
        body.append(pairs)
    head, tail = (_number(memory, name, f"{where}: memory_usage") for name in ("head_memory", "tail_memory"))
    return DryRuns(stages, layers, held, strategies, head, tail, body)


def decompose(runs: DryRuns, where: str) -> LayerMemories:
    """The memories that explain the measured stages, by least squares; a constant where the runs leave room for one.

    Raises:
        InputError: the runs do not determine what their layers use.
    """
    names = [name for name in STRATEGIES if any(any(run[name]) for run in runs.strategies)]
    rows, measured = [], []
    for run, body in enumerate(runs.body):
        for stage, mib in sorted(body.items()):
            rows.append(_row(runs, names, run, stage))
            measured.append(mib)
    matrix, right = np.array(rows, dtype=np.float64), np.array(measured)
    with_constant = np.hstack([matrix, np.ones((len(rows), 1))])
    constant = np.linalg.matrix_rank(with_constant) == with_constant.shape[1]
    used = with_constant if constant else matrix
    if np.linalg.matrix_rank(used) < used.shape[1]:
        raise InputError(
            f"{where}: {len(rows)} body stages do not determine {matrix.shape[1]} memories (parameter,"
            f" {', '.join(names)}); paraplan ppb -auto proposes runs that do"
        )
    found = np.linalg.lstsq(used, right, rcond=None)[0]
    rest = float(found[-1]) if constant else 0.0
    slack = NOISE * float(right.max())
    for name, value, most in zip(("parameter", *names), found, matrix.max(axis=0), strict=False):
        if value * most < -slack:
            raise InputError(
                f"{where}: memory_usage.body_memories.memories: they contradict each other ({_stages_text(runs)}):"
                f" {value:,.4g} MiB for {name} would explain them, at least 0 is needed"
            )
    ends = []
    for field, stage, mib in (("head", 0, runs.head_mib), ("tail", runs.stages - 1, runs.tail_mib)):
        layers = float(np.array(_row(runs, names, 0, stage)) @ found[: matrix.shape[1]]) + rest
        if mib - layers < -slack:
            raise InputError(
                f"{where}: memory_usage.{field}_memory: {mib:g} found, at least {layers:,.4g} is needed: body_memories"
                f" give stage {stage}'s layers as much"
            )
        ends.append(mib - layers)
    return LayerMemories(
        float(found[0]),
        {name: float(value) for name, value in zip(names, found[1:], strict=False)},
        ends[0],
        ends[1],
        rest,
        float(np.abs(used @ found - right).max()),
    )


NOISE = 0.05
"""Of the largest measured body stage: how far below 0 its parts or an end may come out."""


def _stages_text(runs: DryRuns) -> str:
    rows = [f"stage {stage} of run {run}: {mib:g}" for run, body in enumerate(runs.body) for stage, mib in body.items()]
    return ", ".join(rows[:NAMED] + ["…"] * (len(rows) > NAMED))


NAMED = 6
"""Measurements that a message lists."""


def _row(runs: DryRuns, names: list[str], run: int, stage: int) -> list[float]:
    in_flight = runs.stages - stage
    strategies = runs.strategies[run]
    return [float(runs.held[run][stage]), *(float(in_flight * strategies[name][stage]) for name in names)]


def with_memories(layers: LayerSet, found: LayerMemories) -> LayerSet:
    """A layer set with measured memories: bodies alike, the ends shared by the first head and the last tail.

    Strategies that were not measured are dropped; times stay.
    """
    changed = []
    heads = [layer.name for layer in layers.layers if layer.role == "HEAD"]
    tails = [layer.name for layer in layers.layers if layer.role == "TAIL"]
    for layer in layers.layers:
        if layer.role == "BODY":
            own = {
                name: replace(layer.strategies.get(name, Strategy(0.0)), activation=max(0.0, kept))
                for name, kept in found.kept.items()
            }
            changed.append(replace(layer, parameter=max(0.0, found.parameter), strategies=own))
            continue
        whole = {tuple(heads[:1]): found.head, tuple(tails[-1:]): found.tail}.get((layer.name,), 0.0)
        nothing = {name: replace(one, activation=0.0) for name, one in layer.strategies.items()}
        changed.append(replace(layer, parameter=max(0.0, whole) / layer.count, strategies=nothing))
    return replace(layers, layers=tuple(changed))


def proposed_runs(stages: int, layers: int, strategies: Sequence[str], seed: int = 0) -> list[dict[str, Any]]:
    """Dry runs whose body stages determine the parameter, every strategy and a constant well.

    Each has ``offset`` and MindFormers' three lists. Of random ones those are taken whose equations are best
    conditioned.

    Raises:
        InputError: too few stages, or fewer layers than chunks to vary.
    """
    if stages < 4 or layers < 2 * stages:
        raise InputError(
            f"dry runs: {stages} stages and {layers} layers found, at least 4 stages (with one between the ends all"
            " layers are as often in flight) and two layers a stage are needed"
        )
    names = [name for name in STRATEGIES if name in strategies]
    if not names:
        raise InputError(
            f"dry runs: layers with {', '.join(strategies)} found, one of {', '.join(STRATEGIES)} is needed: what"
            " MindFormers' lists can say"
        )
    unknowns = len(names) + 2
    count = -(-unknowns // (stages - 2))
    rng = np.random.default_rng(seed)
    best: tuple[float, list[dict[str, list[int]]]] = (-1.0, [])
    share = layers // stages
    for _ in range(PROPOSALS):
        runs = [_random_run(rng, stages, layers, share, names) for _ in range(count)]
        rows = []
        for run in runs:
            for stage in range(1, stages - 1):
                held = sum(run[name][stage] for name in names)
                rows.append([held, *((stages - stage) * run[name][stage] for name in names), 1.0])
        matrix = np.array(rows, dtype=np.float64)
        smallest = float(np.linalg.svd(matrix / np.abs(matrix).max(axis=0).clip(1.0), compute_uv=False)[-1])
        if smallest > best[0]:
            best = (smallest, runs)
    return [_lists(run, names, share, stages) for run in best[1]]


PROPOSALS = 400
"""Random sets of runs that are compared."""


def _random_run(
    rng: np.random.Generator, stages: int, layers: int, share: int, names: Sequence[str]
) -> dict[str, list[int]]:
    offset = rng.integers(-min(2, share - 1), 3, stages)
    while (surplus := int(offset.sum()) - (layers - share * stages)) != 0:
        s = int(rng.integers(stages))
        if share + offset[s] - np.sign(surplus) >= 1:
            offset[s] -= np.sign(surplus)
    run: dict[str, list[int]] = {name: [0] * stages for name in names}
    for s in range(stages):
        left = share + int(offset[s])
        # The lists cannot say select and comm on one stage.
        barred = "comm" if rng.integers(2) else "select"
        choices = [name for name in names if name not in ("none", barred)]
        for name in rng.permutation(choices) if choices else []:
            run[str(name)][s] = int(rng.integers(0, left + 1))
            left -= run[str(name)][s]
        rest = "none" if "none" in names else names[-1]
        run[rest][s] += left
    return run


def _lists(run: dict[str, list[int]], names: Sequence[str], share: int, stages: int) -> dict[str, Any]:
    def of(name: str, s: int) -> int:
        return run[name][s] if name in names else 0

    every = range(stages)
    return {
        "offset": [sum(run[name][s] for name in names) - share for s in every],
        "recompute": [of("full", s) for s in every],
        "select_recompute": [of("select", s) + of("both", s) + of("full", s) for s in every],
        "select_comm_recompute": [of("comm", s) + of("both", s) + of("full", s) for s in every],
    }


# --- reading ----------------------------------------------------------------------------------------------------


def _section(values: Any, name: str, where: str) -> Mapping[str, Any]:
    found = values.get(name) if isinstance(values, Mapping) else None
    if not isinstance(found, Mapping):
        raise InputError(f"{where}: {name}: {'missing' if found is None else repr(found)[:40]}, a mapping is needed")
    return found


def _whole(values: Mapping[str, Any], name: str, where: str) -> int:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{where}.{name}: {shown(value)} found, a whole number of at least 1 is needed")
    return value


def _number(values: Mapping[str, Any], name: str, where: str) -> float:
    value = values.get(name)
    if isinstance(value, list) and value:
        # One a run; the first counts.
        value = value[0]
    return _mebibytes(value, f"{where}.{name}")


def _mebibytes(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LARGEST:
        raise InputError(f"{where}: {shown(value)} found, a number from 0 to {LARGEST:g} is needed")
    return float(value)


def _nested(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)


def _table(value: Any, runs: int, stages: int, where: str) -> Rows:
    """A row for every run, from a table, one row for all runs, or false."""
    if value is False or value == 0:
        return [[0] * stages for _ in range(runs)]
    rows = value if _nested(value) else [value] * runs
    good = isinstance(rows, list) and len(rows) == runs
    good = good and all(
        isinstance(row, list)
        and len(row) == stages
        and all(isinstance(x, int) and not isinstance(x, bool) for x in row)
        for row in rows
    )
    if not good:
        raise InputError(f"{where}: {str(value)[:60]} found, {runs} rows of {stages} whole numbers are needed")
    return [list(row) for row in rows]


def _pairs(ids: Any, measured: Any, run: int, where: str) -> dict[int, float]:
    if not isinstance(ids, list) or not isinstance(measured, list) or len(ids) <= run or len(measured) <= run:
        raise InputError(f"{where}: stage_id and memories, lists of the same length for every run, are needed")
    stages, values = ids[run], measured[run]
    if not isinstance(stages, list) or not isinstance(values, list) or len(stages) != len(values):
        raise InputError(f"{where}: stage_id and memories, lists of the same length for every run, are needed")
    for stage in stages:
        if isinstance(stage, bool) or not isinstance(stage, int):
            raise InputError(f"{where}.stage_id: {shown(stage)} found, a whole number is needed")
    return {stage: _mebibytes(value, f"{where}.memories") for stage, value in zip(stages, values, strict=True)}
