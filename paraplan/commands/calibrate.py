"""``paraplan calibrate``: fit a device type's constants to your own measured runs."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from paraplan.commands.arguments import Parser
from paraplan.documents import write_whole
from paraplan.errors import InputError


def add_arguments(parser: Parser) -> None:
    parser.add_argument("runs", metavar="RUNS.csv", help="measured runs, with the columns of benchmarks/data/runs.csv")
    parser.add_argument("--device", metavar="NAME", help="device type to fit, where the table has several")
    parser.add_argument("-o", "--output", metavar="FILE", help="overlay to write (<device>-calibration.yaml)")


def run(arguments: argparse.Namespace) -> int:
    import yaml

    from paraplan import performance
    from paraplan.clusters import load_device
    from paraplan.clusters.spec import Efficiency
    from paraplan.formats.runs_table import answer, read_rows
    from paraplan.performance.calibration import calibrate

    rows = [row for row in read_rows(Path(arguments.runs)) if (row.get("step_time_s") or "").strip()]
    names = sorted({load_device(row["hardware"]).name for row in rows if row.get("hardware")})
    device = load_device(arguments.device).name if arguments.device else names[0] if len(names) == 1 else ""
    if not device:
        raise InputError(f"{arguments.runs}: --device: one of {', '.join(names) or 'the devices measured'} is needed")
    own = [row for row in rows if row.get("hardware") and load_device(row["hardware"]).name == device]
    # The unknowns of a row are settled once, with the catalogue's constants.
    answered = [(row, answer(row)) for row in own]
    used = [(row, found) for row, found in answered if not found.error]
    if len(used) < 2:
        raise InputError(f"{arguments.runs}: {len(used)} usable runs of {device} found, at least 2 are needed")
    measured = np.array([_seconds(row, arguments.runs) for row, _ in used])

    def predict(efficiency: Efficiency) -> Any:
        times = []
        for _, found in used:
            assert found.problem is not None and found.layout is not None, "rows with errors were left out"
            cluster = found.problem.cluster
            changed = replace(cluster, device=replace(cluster.device, efficiency=efficiency))
            times.append(performance.step_times(replace(found.problem, cluster=changed), found.layout)[0])
        return np.array(times)

    start = load_device(device).efficiency
    result = calibrate(start, predict, measured)
    path = Path(arguments.output or f"{device}-calibration.yaml")
    values = {name: float(f"{getattr(result.efficiency, name):.4g}") for name in result.fitted}
    header = (
        f"# Fitted by paraplan calibrate on {len(used)} runs of {device} in {Path(arguments.runs).name}:"
        f" mean error {result.before:.1%} before, {result.after:.1%} after.\n"
    )
    write_whole(path, header + yaml.safe_dump({"device": device, "efficiency": values}, sort_keys=False))
    out = [f"{device}: {len(used)} runs, mean error {result.before:.1%} before, {result.after:.1%} after"]
    out += [f"  {name:17} {getattr(start, name):10.4g} -> {values[name]:.4g}" for name in result.fitted]
    if result.undetermined:
        out.append(f"not determined by these runs, kept: {', '.join(result.undetermined)}")
    out.append(f"{path}: name it as cluster.calibration in a plan config")
    sys.stdout.write("\n".join(out) + "\n")
    return 0


def _seconds(row: dict[str, str], where: str) -> float:
    try:
        value = float(row["step_time_s"])
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise InputError(
            f"{where}: {row['id']}: step_time_s: {row['step_time_s']!r} found, a positive number is needed"
        )
    return value
