"""``paraplan ppb``: balancing alone, from a layer description."""

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paraplan.cli.arguments import Parser, positive
from paraplan.foundation.documents import write_whole
from paraplan.foundation.errors import InputError
from paraplan.simulate.pipeline_plan import PipelinePlan, Table

TIME_LIMIT_S = 90.0


def add_arguments(parser: Parser) -> None:
    parser.add_argument("-m", "--model", metavar="LAYERS", help="layer file, or the name of a bundled one")
    parser.add_argument("-lf", "--layer-folder", metavar="PATH", help="folder (or file) with layer files")
    parser.add_argument("-s", "--stages", type=positive, help="pipeline stages")
    parser.add_argument("-mb", "--micro-batches", type=positive, help="micro-batches of a step")
    parser.add_argument("-i", "--interleave", type=positive, metavar="VPP", help="chunks of a stage (1)")
    parser.add_argument(
        "-mem",
        "--memory",
        default="56000",
        metavar="SIZE",
        help="memory limit of a stage in MiB or with its unit, or one for each stage: 58GB, 60000,60000,… (56000)",
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
        help="stages exchange in batches and wait for each other (Megatron without overlap; 1f1b and interleaved)",
    )
    parser.add_argument(
        "--slowness", default="1", metavar="RATIO", help="time of the stages over the layers' own, or one for each (1)"
    )
    parser.add_argument(
        "--fix",
        metavar="FILE",
        help="YAML of what is given: offset, recompute, select_recompute, select_comm_recompute, pins, forbidden,"
        " movable, memory_limit_mib, constant_mib, slowness",
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
        "-init", "--init", metavar="FILE", help="YAML of measured stage memories, which the layers' memories come from"
    )
    parser.add_argument(
        "-train",
        "--train",
        metavar="FILE",
        help="MindFormers training YAML: its stages, micro-batches, chunks, schedule, layers where not given; its plan",
    )
    parser.add_argument(
        "-auto",
        "--auto",
        "--guide",
        dest="guide",
        action="store_true",
        help="propose dry runs whose stage memories determine the layers' (-init)",
    )
    parser.add_argument(
        "-dump", "--dump", action="store_true", help="write the layers and the integer program to the output folder"
    )
    parser.add_argument(
        "-exec", "--exec", dest="execute", choices=("true", "false"), default="true", help="false: do not solve"
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="write pipeline.json, timeline.svg and the lists here")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(arguments: argparse.Namespace) -> int:
    from paraplan.balance.balancer import balance
    from paraplan.balance.shortfall import ContradictionError
    from paraplan.cli.ppb_problem import mebibytes, numbers, problem_of

    if arguments.guide and arguments.init:
        raise InputError("-auto: found with -init, which reads the runs that -auto proposes")
    if arguments.execute == "false" and not arguments.dump:
        raise InputError("-exec false: found without -dump, nothing would be done")
    lists = _from_training(arguments)
    _ask_for_missing(arguments)
    arguments.memory, arguments.slowness = mebibytes(arguments.memory), numbers(arguments.slowness)
    if arguments.guide:
        return _guide(arguments)
    problem = problem_of(arguments)
    if arguments.init:
        _tell_measured(arguments)
    others = _beside(arguments, problem, lists)
    folder = Path(arguments.output) if arguments.output else None
    if arguments.dump:
        _dump(problem, folder or Path())
    if arguments.execute == "false":
        return 0
    try:
        plan = balance(problem)
    except ContradictionError as error:
        raise InputError(f"{arguments.fix}: {error}" if arguments.fix else str(error)) from None
    document: dict[str, Any] = asdict(plan)
    if others:
        document["compared"] = dict(others)
    if folder is not None:
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
        if getattr(arguments, name) is not None or (arguments.guide and name == "micro_batches"):
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


def _dump(problem: Any, folder: Path) -> None:
    from paraplan.balance import model
    from paraplan.balance.balancer import even_start
    from paraplan.balance.layer_set import write_layers

    write_layers(problem.layers, folder / "layers.json")
    write_whole(folder / "balance.lp", model.dump(problem, even_start(problem, 0).astype(float)))
    sys.stderr.write(f"{folder / 'layers.json'}\n{folder / 'balance.lp'}\n")


def _from_training(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fill in what a training YAML or measured runs say; returns the YAML's own lists."""
    arguments.train_layers = None
    if arguments.init and arguments.stages is None:
        from paraplan.balance.measured import read_dry_runs

        arguments.stages = read_dry_runs(Path(arguments.init)).stages
    if not arguments.train:
        return {}
    from paraplan.frameworks_io.training_yaml import read_training_yaml
    from paraplan.schedules.orders import V_SHAPED

    found = read_training_yaml(Path(arguments.train))
    for name, field, value in (
        ("stages", "pipeline_stage", found.stages),
        ("micro_batches", "micro_batch_num", found.micro_batches),
    ):
        if getattr(arguments, name) is None:
            if value is None and not (arguments.guide and name == "micro_batches"):
                raise InputError(
                    f"{arguments.train}: parallel_config.{field}: missing, a whole number of at least 1 is needed"
                )
            setattr(arguments, name, value)
    if not (arguments.schedule or arguments.dualpipe or arguments.less_memory or arguments.sequence > 1):
        # An order that is asked for is another one than the file's, and so may its chunks be.
        arguments.schedule, arguments.sequence = found.schedule, found.splits
    if arguments.interleave is None and not arguments.dualpipe and arguments.schedule not in V_SHAPED:
        arguments.interleave = found.chunks
    arguments.train_layers = found.layers
    return dict(found.lists)


def _tell_measured(arguments: argparse.Namespace) -> None:
    from paraplan.balance.measured import decompose, read_dry_runs
    from paraplan.cli.ppb_problem import memories_text

    sys.stderr.write(memories_text(decompose(read_dry_runs(Path(arguments.init)), arguments.init)) + "\n")


def _guide(arguments: argparse.Namespace) -> int:
    """Write the dry runs to do, in the form that ``-init`` reads once they are measured."""
    import yaml

    from paraplan.balance.layer_set import load_layers
    from paraplan.balance.measured import proposed_runs

    layers = load_layers(arguments.model, arguments.layer_folder)
    bodies = layers.of_role("BODY")
    count = arguments.train_layers or sum(layer.count for layer in bodies)
    runs = proposed_runs(arguments.stages, count, [name for layer in bodies for name in layer.strategies])
    inner = list(range(1, arguments.stages - 1))
    document = {
        "pipeline_config": {
            "pipeline_num": arguments.stages,
            "num_layer": count,
            "offset": [run["offset"] for run in runs],
        },
        "recompute_config": {
            name: [run[name] for run in runs] for name in ("recompute", "select_recompute", "select_comm_recompute")
        },
        "memory_usage": {
            "head_memory": None,
            "tail_memory": None,
            "body_memories": {"stage_id": [inner for _ in runs], "memories": [[None] * len(inner) for _ in runs]},
        },
    }
    text = (
        f"# Run the training for a few steps {'once' if len(runs) == 1 else f'{len(runs)} times'} on {arguments.stages}"
        " stages without interleaving (pp_interleave_num 1),\n# with the offset and recompute lists of each row, and"
        " write the peak memory of every stage (MiB) below:\n# head_memory of the first run's first stage, tail_memory"
        " of its last, memories of those between. Then: paraplan ppb -init THIS_FILE …\n"
    ) + yaml.safe_dump(document, default_flow_style=None, sort_keys=False, width=100)
    if arguments.output:
        path = Path(arguments.output) / "dry_runs.yaml"
        write_whole(path, text)
        sys.stdout.write(f"{path}\n")
    else:
        sys.stdout.write(text)
    return 0


def _beside(arguments: argparse.Namespace, problem: Any, training: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Naive and hand-written plans, simulated."""
    from paraplan.balance.balancer import even_start, plan_of
    from paraplan.balance.play import counts_of, read_plans

    found: list[tuple[str, Any]] = []
    if arguments.naive:
        found += [
            ("even, strategies that keep least", even_start(problem, 0)),
            ("even, strategies that keep most", even_start(problem, 1)),
        ]
    if training:
        found.append(("training configuration", counts_of(training, problem, arguments.train)))
    if arguments.manual:
        found += read_plans(Path(arguments.manual), problem)
    result = []
    for name, counts in found:
        plan = plan_of(problem, counts, "feasible", 0.0, 0.0, "")
        over = max(x - y for x, y in zip(plan.peak_memory_mib, problem.memory_limit_mib, strict=True))
        result.append(
            (name, {"makespan": plan.makespan, "peak_memory_mib": list(plan.peak_memory_mib), "fits": over <= 1e-6})
        )
    return result


def _write(folder: Path, plan: PipelinePlan, document: dict[str, Any]) -> None:
    """The plan's files; where there is none, none."""
    import yaml

    from paraplan.balance.lists import write_lists
    from paraplan.balance.play import play
    from paraplan.plan.playable import read_plan
    from paraplan.plan.plots.timeline import timeline_svg

    path, lists_path = folder / "pipeline.json", folder / "mindformers.yaml"
    if plan.status == "infeasible":
        # Those of an earlier run would pass for this one's.
        for one in (path, folder / "timeline.svg", lists_path):
            one.unlink(missing_ok=True)
        return
    write_whole(path, json.dumps(_finite(document), indent=1) + "\n")
    given = read_plan(path)
    title = f"{given.problem.layers.name}, {plan.schedule}: makespan {plan.makespan:.6g}"
    drawing = timeline_svg(play(given), title, "layer-file units", plan.peak_memory_mib, plan.memory_limit_mib)
    write_whole(folder / "timeline.svg", drawing)
    try:
        lists = {"offset": [list(row) for row in plan.offset], **write_lists(plan.recompute)}
    except InputError as error:
        sys.stderr.write(f"no MindFormers lists: {error}\n")
        lists_path.unlink(missing_ok=True)
        return
    write_whole(lists_path, yaml.safe_dump(lists, default_flow_style=None, sort_keys=False))


def plan_text(plan: PipelinePlan, others: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """A plan for people."""
    if plan.status == "infeasible":
        return [f"infeasible: {plan.message}" if math.isinf(plan.lower_bound) else plan.message]
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
        change = f" ({summary['makespan'] / plan.makespan - 1:+.1%})" if plan.makespan else ""
        lines.append(f"{name}: makespan {summary['makespan']:.6g}{change}{fits}")
    return lines


def _rows(name: str, table: Table) -> list[str]:
    width = max(len(str(x)) for row in table for x in row)
    return [f"{name if v == 0 else '':10} " + " ".join(str(x).rjust(width) for x in row) for v, row in enumerate(table)]


def _finite(value: Any) -> Any:
    """Numbers that JSON does not know as null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
