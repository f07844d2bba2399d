"""``paraplan estimate``: one layout's time and memory, or a table of many runs."""

import argparse
import json
import sys
from pathlib import Path

from paraplan.cli.arguments import Parser, filled, settings
from paraplan.foundation.errors import InputError, NoAnswerError

GIB = 2.0**30


def add_arguments(parser: Parser) -> None:
    parser.add_argument("config", nargs="?", type=filled, metavar="CONFIG", help="plan config")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="DIM=VALUE",
        help="a dimension of the layout, e.g. tp=8",
    )
    parser.add_argument("--table", type=filled, metavar="RUNS.csv", help="a table of runs, one layout a row")
    parser.add_argument(
        "--output", type=filled, metavar="OUT.csv", help="where the table's answers go; -: standard output"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(arguments: argparse.Namespace) -> int:
    if arguments.table:
        if arguments.config is not None or arguments.settings:
            given = arguments.config or f"--set {arguments.settings[0]}"
            raise InputError(f"paraplan estimate: {given} and --table found, one of them is needed")
        return _table(arguments)
    if arguments.output:
        raise InputError("paraplan estimate: --output: without --table found, it is where a table's answers go")
    if arguments.config is None:
        raise InputError("paraplan estimate: CONFIG or --table RUNS.csv: missing; see paraplan estimate --help")
    return _one(arguments)


def _table(arguments: argparse.Namespace) -> int:
    from paraplan.runs.table import estimate_table

    if not arguments.output:
        raise InputError("paraplan estimate: --output: missing, a file for the answers is needed")
    if arguments.json and arguments.output == "-":
        raise InputError("paraplan estimate: --json: standard output takes the table, a file as --output is needed")
    answered, refused = estimate_table(Path(arguments.table), Path(arguments.output))
    if arguments.json:
        sys.stdout.write(json.dumps({"answered": answered, "refused": refused, "output": arguments.output}) + "\n")
    else:
        sys.stderr.write(f"{answered} rows answered, {refused} with an error, {arguments.output}\n")
    return 0 if answered or not refused else NoAnswerError.exit_status


def _one(arguments: argparse.Namespace) -> int:
    from paraplan import memory
    from paraplan import time as performance
    from paraplan.question.layouts import COLUMNS, Layouts
    from paraplan.question.plan_config import load_plan
    from paraplan.question.search_spec import SearchSpec, words
    from paraplan.search.explain import complete
    from paraplan.search.rules import rules
    from paraplan.search.search import layout_json, predicted

    config = load_plan(Path(arguments.config))
    problem = config.problem
    row = complete(problem, {**config.search.fixed(), **settings(arguments.settings)})
    layouts = Layouts.of([row])
    columns = {name: getattr(layouts, name) for name in COLUMNS}
    for rule in rules(problem, SearchSpec()):
        if not bool(rule.holds(columns)[0]):
            found = words(row, sorted(rule.needs), ", ")
            raise InputError(f"{arguments.config}: --set: {found} breaks rule '{rule.name}': {rule.reason}")
    times, peaks = predicted(problem, config.search, layouts), memory.estimate(problem, layouts)
    step, peak = times.step_time_N, float(peaks.peak_N[0])
    budget = problem.cluster.memory_budget
    band = error_band(problem.cluster.device.name)
    document = {
        "parallel": layout_json(row),
        "step_time_s": float(step[0]),
        "recalibration": dict(config.search.recalibration),
        "error_band": band,
        "tokens_per_s_per_device": float(performance.tokens_per_second_per_device(problem, step)[0]),
        "mfu": float(performance.mfu(problem, step)[0]),
        "time_s": {name: float(value[0]) for name, value in times.components.items()},
        "peak_memory_gib": peak / GIB,
        "memory_gib": {name: float(value[0]) / GIB for name, value in peaks.components.items()},
        "heaviest_stage": int(peaks.stage_N[0]),
        "memory_budget_gib": budget / GIB,
        "fits": peak <= budget,
        "efficiencies": efficiencies(problem.cluster.device.name, problem.cluster.device.efficiency),
    }
    if arguments.json:
        sys.stdout.write(json.dumps(document) + "\n")
        return 0
    sys.stdout.write("\n".join(_text(document)) + "\n")
    return 0


def error_band(device: str) -> float:
    """Relative error that four of five measured runs of the device type stay within; 0.25 where none was measured."""
    from paraplan.runs.bands import BANDS

    return BANDS.get(device, BANDS["unmeasured"])


def efficiencies(device: str, efficiency: object) -> dict[str, dict[str, object]]:
    """Every efficiency with where it comes from: ``fitted`` on measured runs, or a ``default``."""
    from dataclasses import asdict, fields

    from paraplan.question.clusters.spec import Efficiency

    values = asdict(efficiency)  # type: ignore[call-overload]
    default = {field.name: field.default for field in fields(Efficiency)}
    return {
        name: {"value": value, "from": "default" if value == default[name] else "fitted"}
        for name, value in values.items()
    }


def _text(document: dict) -> list[str]:  # type: ignore[type-arg]
    from paraplan.search.search import ratios_text

    row = document["parallel"]
    lines = [" ".join(f"{name}={value}" for name, value in row.items()), ""]
    if document["recalibration"]:
        lines.append(f"recalibrated: {ratios_text(document['recalibration'])}")
    lines.append(
        f"step {document['step_time_s']:.4g} s (± {document['error_band']:.0%}),"
        f" {document['tokens_per_s_per_device']:,.0f} tokens/s/device, MFU {document['mfu']:.1%}"
    )
    lines += [
        f"  {name:11} {value:9.4f} s {value / document['step_time_s']:7.1%}"
        for name, value in document["time_s"].items()
        if value
    ]
    fits = "fits" if document["fits"] else "does not fit"
    lines += [
        "",
        f"peak memory {document['peak_memory_gib']:.2f} GiB on stage {document['heaviest_stage']},"
        f" {fits} in {document['memory_budget_gib']:.2f} GiB",
    ]
    lines += [f"  {name:11} {value:9.2f} GiB" for name, value in document["memory_gib"].items() if value]
    lines += ["", "efficiencies of the device type:"]
    lines += [f"  {name:17} {item['value']:<12.4g} {item['from']}" for name, item in document["efficiencies"].items()]
    return lines
