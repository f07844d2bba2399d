"""``paraplan ppb``: balancing alone, from a layer description."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paraplan.commands.arguments import Parser, positive
from paraplan.documents import read_document, write_whole
from paraplan.errors import InputError
from paraplan.pipeline_plan import PipelinePlan, Table

DEFAULT_LIMIT_MIB = 56000.0
TIME_LIMIT_S = 90.0


def add_arguments(parser: Parser) -> None:
    parser.add_argument("-m", "--model", metavar="LAYERS", help="layer file, or the name of a bundled one")
    parser.add_argument("-lf", "--layer-folder", metavar="PATH", help="folder (or file) with layer files")
    parser.add_argument("-s", "--stages", type=positive, help="pipeline stages")
    parser.add_argument("-mb", "--micro-batches", type=positive, help="micro-batches of a step")
    parser.add_argument("-i", "--interleave", type=positive, default=1, metavar="VPP", help="chunks of a stage (1)")
    parser.add_argument(
        "-mem", "--memory", type=float, default=DEFAULT_LIMIT_MIB, metavar="MIB", help="memory limit of a stage (56000)"
    )
    parser.add_argument(
        "-mc", "--memory-constant", type=float, default=0.0, metavar="MIB", help="held on every stage (0)"
    )
    parser.add_argument(
        "-lm", "--less-memory", type=int, choices=(0, 1), default=0, help="1: the less-memory interleaved order"
    )
    parser.add_argument("-dual", "--dualpipe", action="store_true", help="DualPipe-V")
    parser.add_argument(
        "-seq", "--sequence", type=positive, default=1, metavar="SPLITS", help="slices of the sequence (Seq1F1B)"
    )
    parser.add_argument("-t", "--time", type=float, default=TIME_LIMIT_S, metavar="SECONDS", help="time limit (90)")
    parser.add_argument(
        "-O",
        "--optimization",
        type=int,
        choices=(0, 1, 2),
        default=1,
        metavar="LEVEL",
        help="0 quick, 1 default, 2 prove",
    )
    parser.add_argument(
        "--schedule",
        help="1f1b, interleaved, interleaved-less-memory, gpipe, zb-h1, zb-h2, zb-v, dualpipe-v, seq1f1b, auto",
    )
    parser.add_argument("--solver", default="highs", help="highs, cbc, gurobi, … where installed")
    parser.add_argument(
        "--p2p", type=float, default=0.0, metavar="TIME", help="time of a send between stages, in the file's unit"
    )
    parser.add_argument(
        "--batched",
        action="store_true",
        help="stages exchange in batches and wait for each other (Megatron without overlap)",
    )
    parser.add_argument("--equal-chunks", action="store_true", help="the same number of layers on every chunk")
    parser.add_argument(
        "--format", choices=("mindformers", "any"), default="mindformers", help="whose lists the answer must fit"
    )
    parser.add_argument(
        "-naive", "--naive", action="store_true", help="also simulate even chunks with no and with full recompute"
    )
    parser.add_argument("-manual", "--manual", metavar="FILE", help="YAML of hand-written plans to simulate beside it")
    parser.add_argument(
        "-dump", "--dump", action="store_true", help="write the layers and the integer program to the output folder"
    )
    parser.add_argument(
        "-exec", "--exec", dest="execute", choices=("true", "false"), default="true", help="false: do not solve"
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="write pipeline.json, timeline.svg and the lists here")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(arguments: argparse.Namespace) -> int:
    from paraplan.ppb.balancer import balance

    _ask_for_missing(arguments)
    problem = _problem(arguments)
    folder = Path(arguments.output) if arguments.output else None
    if arguments.dump:
        _dump(problem, folder or Path())
    if arguments.execute == "false":
        return 0
    plan = balance(problem)
    document: dict[str, Any] = asdict(plan)
    others = _beside(arguments, problem)
    if others:
        document["compared"] = dict(others)
    if folder is not None and plan.status != "infeasible":
        _write(folder, plan, document)
    if arguments.json:
        sys.stdout.write(json.dumps(_finite(document)) + "\n")
    else:
        sys.stdout.write("\n".join(plan_text(plan, others)) + "\n")
    if plan.status == "infeasible":
        if arguments.json:
            sys.stderr.write(plan.message + "\n")
        return 1
    return 0


def _ask_for_missing(arguments: argparse.Namespace) -> None:
    """Without arguments the command asks, as its users know it."""
    for name, question in (("model", "layer file"), ("stages", "stages"), ("micro_batches", "micro-batches")):
        if getattr(arguments, name) is not None:
            continue
        option = {"model": "-m", "stages": "-s", "micro_batches": "-mb"}[name]
        if not sys.stdin.isatty():
            raise InputError(f"paraplan ppb: {option}: missing; see paraplan ppb --help")
        sys.stderr.write(f"{question}: ")
        sys.stderr.flush()
        answer = sys.stdin.readline().strip()
        try:
            setattr(arguments, name, answer if name == "model" else positive(answer))
        except (ValueError, argparse.ArgumentTypeError):
            raise InputError(
                f"paraplan ppb: {option}: {answer!r} found, a whole number of at least 1 is needed"
            ) from None


def _problem(arguments: argparse.Namespace) -> Any:
    from paraplan.layouts import SCHEDULES
    from paraplan.ppb.balance_spec import BalanceSpec
    from paraplan.ppb.layer_set import load_layers
    from paraplan.ppb.problem import BalanceProblem

    schedule, asked = arguments.schedule or "", arguments.schedule or ""
    if not schedule or schedule == "auto":
        schedule = "interleaved" if arguments.interleave > 1 else "1f1b"
        if arguments.sequence > 1:
            schedule = "seq1f1b"
        if arguments.dualpipe:
            schedule = "dualpipe-v"
    if arguments.less_memory and schedule == "interleaved":
        schedule = "interleaved-less-memory"
    if schedule not in SCHEDULES:
        raise InputError(f"--schedule: {schedule!r} found, auto or one of {', '.join(SCHEDULES)} is allowed")
    for option, value, least in (
        ("-mem", arguments.memory, 0),
        ("-mc", arguments.memory_constant, 0),
        ("-t", arguments.time, 0),
        ("--p2p", arguments.p2p, 0),
    ):
        if not value >= least or value == float("inf") or (option in ("-mem", "-t") and value == 0):
            raise InputError(
                f"{option}: {value:g} found, a finite number"
                f" {'above' if option in ('-mem', '-t') else 'of at least'} 0 is needed"
            )
    spec = BalanceSpec(
        time_limit_s=arguments.time,
        effort=arguments.optimization,
        solver=arguments.solver,
        schedule="auto" if asked == "auto" else schedule,  # type: ignore[arg-type]
        equal_chunks=arguments.equal_chunks,
        format=arguments.format,
    )
    return BalanceProblem(
        layers=load_layers(arguments.model, arguments.layer_folder),
        stages=arguments.stages,
        micro_batches=arguments.micro_batches,
        chunks=2 if schedule in ("zb-v", "dualpipe-v") else arguments.interleave,
        schedule=schedule,
        memory_limit_mib=(arguments.memory,) * arguments.stages,
        constant_mib=(arguments.memory_constant,) * arguments.stages,
        p2p=arguments.p2p,
        batched=arguments.batched,
        splits=arguments.sequence,
        spec=spec,
    )


def _dump(problem: Any, folder: Path) -> None:
    from paraplan.ppb import model
    from paraplan.ppb.balancer import even_start
    from paraplan.ppb.layer_set import write_layers

    folder.mkdir(parents=True, exist_ok=True)
    write_layers(problem.layers, folder / "layers.json")
    model.dump(problem, folder / "balance.lp", even_start(problem, 0).astype(float))
    sys.stderr.write(f"{folder / 'layers.json'}\n{folder / 'balance.lp'}\n")


def _beside(arguments: argparse.Namespace, problem: Any) -> list[tuple[str, dict[str, Any]]]:
    """Naive and hand-written plans, simulated."""
    from paraplan.ppb.balancer import even_start, plan_of
    from paraplan.ppb.play import counts_of

    found: list[tuple[str, Any]] = []
    if arguments.naive:
        found += [
            ("even, strategies that keep least", even_start(problem, 0)),
            ("even, strategies that keep most", even_start(problem, 1)),
        ]
    if arguments.manual:
        document = read_document(Path(arguments.manual))
        if not isinstance(document, dict) or not document:
            raise InputError(f"{arguments.manual}: a mapping of plans is needed")
        plans = document if all(isinstance(x, dict) for x in document.values()) else {"manual": document}
        found += [
            (str(name), counts_of(given, problem, f"{arguments.manual}: {name}")) for name, given in plans.items()
        ]
    result = []
    for name, counts in found:
        plan = plan_of(problem, counts, "feasible", 0.0, 0.0, "")
        over = max(x - y for x, y in zip(plan.peak_memory_mib, problem.memory_limit_mib, strict=True))
        result.append(
            (name, {"makespan": plan.makespan, "peak_memory_mib": list(plan.peak_memory_mib), "fits": over <= 1e-6})
        )
    return result


def _write(folder: Path, plan: PipelinePlan, document: dict[str, Any]) -> None:
    import yaml

    from paraplan.plots.timeline import timeline_svg
    from paraplan.ppb.lists import write_lists
    from paraplan.ppb.play import play, read_plan

    path = folder / "pipeline.json"
    write_whole(path, json.dumps(_finite(document), indent=1) + "\n")
    given = read_plan(path)
    title = f"{given.problem.layers.name}, {plan.schedule}: makespan {plan.makespan:.6g}"
    drawing = timeline_svg(play(given), title, "layer-file units", plan.peak_memory_mib, plan.memory_limit_mib)
    write_whole(folder / "timeline.svg", drawing)
    try:
        lists = {"offset": [list(row) for row in plan.offset], **write_lists(plan.recompute)}
    except InputError as error:
        sys.stderr.write(f"no MindFormers lists: {error}\n")
        return
    write_whole(folder / "mindformers.yaml", yaml.safe_dump(lists, default_flow_style=None, sort_keys=False))


def plan_text(plan: PipelinePlan, others: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """A plan for people."""
    if plan.status == "infeasible":
        return [f"infeasible: {plan.message}"]
    bubble = plan.bubble
    lines = [
        f"{plan.status}: makespan {plan.makespan:.6g}, lower bound {plan.lower_bound:.6g}, gap {plan.gap:.2%}"
        f" ({plan.schedule}, {plan.seconds:.1f} s, {plan.solver})",
        f"bubble {bubble.total:.2%} = ideal {bubble.ideal:.2%} + imbalance {bubble.imbalance:.2%}"
        f" + communication {bubble.communication:.2%} + recompute {bubble.recompute:.2%}",
        "",
        *_rows("layers", plan.layers),
        *_rows("offset", plan.offset),
    ]
    for name, table in plan.recompute.items():
        if any(any(row) for row in table):
            lines += _rows(name, table)
    lines += ["", "peak memory, MiB (limit " + f"{plan.memory_limit_mib:,.0f})"]
    peaks = plan.peak_memory_mib
    lines += ["  " + " ".join(f"{x:9,.0f}" for x in peaks[i : i + 8]) for i in range(0, len(peaks), 8)]
    for name, summary in others:
        fits = "" if summary["fits"] else ", over the memory limit"
        lines.append(
            f"{name}: makespan {summary['makespan']:.6g} ({summary['makespan'] / plan.makespan - 1:+.1%}){fits}"
        )
    return lines


def _rows(name: str, table: Table) -> list[str]:
    width = max(len(str(x)) for row in table for x in row)
    return [f"{name if v == 0 else '':10} " + " ".join(str(x).rjust(width) for x in row) for v, row in enumerate(table)]


def _finite(value: Any) -> Any:
    """Infinite numbers as null, that JSON knows."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and value in (float("inf"), float("-inf")) else value
