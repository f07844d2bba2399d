"""The balancing problem that the arguments of ``paraplan ppb`` ask for."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from paraplan.balance.layer_set import LARGEST, LayerSet, load_layers
from paraplan.balance.measured import LayerMemories, decompose, read_dry_runs, with_memories
from paraplan.balance.play import per_stage
from paraplan.balance.problem import BalanceProblem
from paraplan.cli.arguments import size
from paraplan.foundation.documents import read_document
from paraplan.foundation.errors import InputError
from paraplan.foundation.records import build, refuse_unknown
from paraplan.question.balance_spec import BalanceSpec
from paraplan.question.layouts import SCHEDULES
from paraplan.schedules.orders import V_SHAPED

MIB = 2.0**20
DEFAULT_LIMIT_MIB = 56000.0
TIME_LIMIT_S = 90.0

TABLES = ("offset", "recompute", "select_recompute", "select_comm_recompute")
PER_STAGE = ("memory_limit_mib", "constant_mib", "slowness")
FIXED = (*TABLES, "pins", "forbidden", "movable", *PER_STAGE)
"""Keys of the file that ``--fix`` names."""


def problem_of(arguments: argparse.Namespace) -> BalanceProblem:
    """Put layers, measured memories, limits and options together.

    Raises:
        InputError: names the option or the file and field, what was found and what is allowed.
    """
    fixed = _fixed(arguments.fix)
    _refuse_contradictions(arguments, fixed)
    schedule = _schedule(arguments)
    layers = load_layers(arguments.model, arguments.layer_folder)
    constant = _number(arguments.memory_constant, "-mc")
    if arguments.init:
        memories = decompose(read_dry_runs(Path(arguments.init)), arguments.init)
        layers, constant = with_memories(layers, memories), constant + memories.constant
    if arguments.train_layers:
        layers = _counted(layers, arguments.train_layers, arguments.train)
    stages = arguments.stages

    def of_stages(key: str, option: str, given: Any, **bounds: Any) -> tuple[float, ...]:
        where = f"{arguments.fix}: {key}" if key in fixed else option
        return per_stage(fixed.get(key, given), stages, where, **({"least": -LARGEST, "most": LARGEST} | bounds))

    options = {key: fixed[key] for key in (*TABLES, "pins", "forbidden", "movable") if key in fixed}
    spec = BalanceSpec(
        time_limit_s=_number(arguments.time, "-t", above=True),
        effort=arguments.optimization,
        solver=arguments.solver,
        schedule="auto" if arguments.schedule == "auto" else schedule,  # type: ignore[arg-type]
        equal_chunks=arguments.equal_chunks,
        format=arguments.format,
    )
    if options:
        built = build(BalanceSpec, options, str(arguments.fix))
        spec = replace(spec, **{key: getattr(built, key) for key in options})
    problem = BalanceProblem(
        layers=layers,
        stages=stages,
        micro_batches=arguments.micro_batches,
        chunks=2 if schedule in V_SHAPED else arguments.interleave or 1,
        schedule=schedule,
        memory_limit_mib=of_stages("memory_limit_mib", "-mem", arguments.memory, least=0.0, above=True),
        constant_mib=of_stages("constant_mib", "-mc", constant),
        slowness=of_stages("slowness", "--slowness", arguments.slowness, least=0.0, above=True),
        p2p=_number(arguments.p2p, "--p2p"),
        batched=arguments.batched,
        splits=arguments.sequence,
        spec=spec,
    )
    _check_range(problem)
    if arguments.fix:
        try:
            _ = problem.restrictions
        except InputError as error:
            raise InputError(f"{arguments.fix}: {error}") from None
    return problem


def memories_text(found: LayerMemories) -> str:
    """Measured layer memories for people."""
    kept = ", ".join(f"{name} {value:,.0f}" for name, value in found.kept.items())
    return (
        f"measured, MiB: parameter {found.parameter:,.0f} a layer; kept by a micro-batch in a layer: {kept}; first"
        f" stage {found.head:,.0f}, last {found.tail:,.0f}, every stage {found.constant:,.0f} more; off by at most"
        f" {found.worst_mib:,.0f}"
    )


def _refuse_contradictions(arguments: argparse.Namespace, fixed: Mapping[str, Any]) -> None:
    """Refuse flags of which one would be ignored."""
    schedule, chunks = arguments.schedule, arguments.interleave or 1
    if schedule not in (None, "auto", *SCHEDULES):
        raise InputError(f"--schedule: {schedule!r} found, auto or one of {', '.join(SCHEDULES)} is allowed")
    named = f"--schedule {schedule}"
    together = (
        ("-dual", named, arguments.dualpipe and schedule not in (None, "dualpipe-v")),
        ("-lm 1", "-dual", arguments.less_memory and arguments.dualpipe),
        ("-lm 1", named, arguments.less_memory and schedule not in (None, "interleaved", "interleaved-less-memory")),
        ("--equal-chunks", f"{arguments.fix}: offset", arguments.equal_chunks and "offset" in fixed),
    )
    for one, other, both in together:
        if both:
            raise InputError(f"{one}: found with {other}, which says otherwise")
    shape = "dualpipe-v" if arguments.dualpipe else schedule
    if shape in V_SHAPED and arguments.interleave not in (None, 2):
        raise InputError(f"-i: {chunks} found, {shape} has 2 chunks a stage")
    if arguments.less_memory and chunks == 1:
        raise InputError("-lm 1: found with one chunk a stage, -i with at least 2 is needed")


def _schedule(arguments: argparse.Namespace) -> str:
    schedule: str = arguments.schedule or ""
    if not schedule or schedule == "auto":
        schedule = "interleaved" if (arguments.interleave or 1) > 1 else "1f1b"
        if arguments.sequence > 1:
            schedule = "seq1f1b"
        if arguments.dualpipe:
            schedule = "dualpipe-v"
    return "interleaved-less-memory" if arguments.less_memory else schedule


def _check_range(problem: BalanceProblem) -> None:
    """Refuse times beside which double precision loses others."""
    times = [problem.p2p]
    for layer in problem.layers.layers:
        times += [layer.forward, layer.backward]
        times += [x for one in layer.strategies.values() for x in (one.extra, one.host_time)]
    largest = max(times) * max(problem.slowness)
    smallest = min((x for x in times if x > 0), default=1.0) * min(problem.slowness)
    if largest > LARGEST * smallest or smallest * LARGEST < 1:
        raise InputError(
            f"times (layers, --p2p, --slowness): {smallest:g} to {largest:g} found, at least {1 / LARGEST:g} and"
            f" at most {LARGEST:g} times the smallest is needed"
        )


def _fixed(path: str | None) -> Mapping[str, Any]:
    """The file of ``--fix``; single rows of tables wrapped."""
    if path is None:
        return {}
    document = read_document(Path(path))
    if not isinstance(document, Mapping):
        raise InputError(f"{path}: {type(document).__name__} found, a mapping is needed")
    refuse_unknown(document, FIXED, path)
    return {key: [value] if key in TABLES and _row(value) else value for key, value in document.items()}


def _row(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(x, int) for x in value)


def mebibytes(text: str) -> float | list[float]:
    """MiB from ``56000``, ``58GB`` or one of either for every stage, separated by commas.

    Raises:
        InputError: something else.
    """
    values = []
    for part in str(text).split(","):
        try:
            values.append(float(part))
        except ValueError:
            values.append(size(part, "-mem") / MIB)
    return values[0] if len(values) == 1 else values


def numbers(text: str) -> float | list[float]:
    """A number, or one for every stage, separated by commas.

    Raises:
        InputError: something else.
    """
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--slowness: {text!r} found, a number or one for each stage is needed") from None
    return values[0] if len(values) == 1 else values


def _number(value: float, option: str, *, above: bool = False) -> float:
    if not 0 <= value <= LARGEST or (above and value == 0):
        raise InputError(
            f"{option}: {value:g} found, a number {'above' if above else 'of at least'} 0, at most {LARGEST:g} is"
            " needed"
        )
    return value


def _counted(layers: LayerSet, count: int, where: str) -> LayerSet:
    """The layer set with the training configuration's number of layers."""
    bodies = layers.of_role("BODY")
    if sum(layer.count for layer in bodies) == count:
        return layers
    if len(bodies) > 1:
        raise InputError(
            f"{where}: model.model_config.num_layers: {count} found, {sum(layer.count for layer in bodies)} are in the"
            " layer file, whose types do not say how to share them"
        )
    return replace(
        layers, layers=tuple(replace(one, count=count) if one.role == "BODY" else one for one in layers.layers)
    )
