"""``paraplan calibrate``: fit a device type's constants to your own measured runs."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from paraplan.cli.arguments import Parser
from paraplan.foundation.documents import write_whole
from paraplan.foundation.errors import InputError
from paraplan.foundation.records import shown
from paraplan.question.clusters import load_device
from paraplan.question.clusters.spec import DeviceSpec, Efficiency

Row = dict[str, str]

SHORTEST, LONGEST = 1e-6, 1e7
"""Seconds that a step can take."""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("runs", metavar="RUNS.csv", help="measured runs, with the columns of benchmarks/data/runs.csv")
    parser.add_argument("--device", metavar="NAME", help="device type to fit, where the table has several")
    parser.add_argument("-o", "--output", metavar="FILE", help="overlay to write (<device>-calibration.yaml)")


def run(arguments: argparse.Namespace) -> int:
    import yaml

    from paraplan import time as performance
    from paraplan.runs.calibration import calibrate
    from paraplan.runs.table import answer, read_rows

    rows = [row for row in read_rows(Path(arguments.runs)) if (row.get("step_time_s") or "").strip()]
    if not rows:
        raise InputError(f"{arguments.runs}: step_time_s: missing in every row, measured seconds are needed")
    runs = _with_devices(rows, arguments.runs, skip_unknown=arguments.device is not None)
    device = _fitted(arguments.device, {device.name: device for _, device in runs}, arguments.runs)
    own = [row for row, measured_on in runs if measured_on.name == device.name]
    # The unknowns of a row are settled once, with the catalogue's constants.
    answered = [(row, answer(row)) for row in own]
    used = [(row, found) for row, found in answered if not found.error]
    refused = [f"{row['id']}: {found.error}" for row, found in answered if found.error]
    if len(used) < 2:
        why = f" (the first that is not: {refused[0]})" if refused else ""
        raise InputError(
            f"{arguments.runs}: {len(used)} usable runs of {device.name} found, at least 2 are needed{why}"
        )
    measured = np.array([_seconds(row, arguments.runs) for row, _ in used])

    def predict(efficiency: Efficiency) -> Any:
        times = []
        for _, found in used:
            assert found.problem is not None and found.layout is not None, "rows with errors were left out"
            cluster = found.problem.cluster
            changed = replace(cluster, device=replace(cluster.device, efficiency=efficiency))
            times.append(performance.step_times(replace(found.problem, cluster=changed), found.layout)[0])
        return np.array(times)

    start = device.efficiency
    result = calibrate(start, predict, measured)
    path = Path(arguments.output or f"{device.name}-calibration.yaml")
    values = {name: float(f"{getattr(result.efficiency, name):.4g}") for name in result.fitted}
    header = (
        f"# Fitted by paraplan calibrate on {len(used)} runs of {device.name} in {Path(arguments.runs).name}:"
        f" mean error {result.before:.1%} before, {result.after:.1%} after.\n"
    )
    write_whole(path, header + yaml.safe_dump({"device": device.name, "efficiency": values}, sort_keys=False))
    out = [f"{device.name}: {len(used)} runs, mean error {result.before:.1%} before, {result.after:.1%} after"]
    out += [f"  {name:17} {getattr(start, name):10.4g} -> {values[name]:.4g}" for name in result.fitted]
    if result.undetermined:
        out.append(f"not determined by these runs, kept: {', '.join(result.undetermined)}")
    if refused:
        out.append(f"{len(refused)} runs of it left out, the first: {refused[0]}")
    out.append(f"{path}: name it as cluster.calibration in a plan config")
    sys.stdout.write("\n".join(out) + "\n")
    return 0


def _with_devices(rows: Sequence[Row], where: str, skip_unknown: bool) -> list[tuple[Row, DeviceSpec]]:
    """Every run that says what it was measured on, with that device."""
    found = []
    for row in rows:
        try:
            if row.get("hardware"):
                found.append((row, load_device(row["hardware"])))
        except InputError as error:
            if not skip_unknown:
                raise InputError(f"{where}: {row['id']}: hardware: {str(error).removeprefix('device: ')}") from None
    return found


def _fitted(asked: str | None, measured: Mapping[str, DeviceSpec], where: str) -> DeviceSpec:
    """The device that is asked for, by any of its names or its file; else the only one measured."""
    if asked is not None:
        try:
            return measured.get(asked) or load_device(asked)
        except InputError as error:
            raise InputError(f"--device: {str(error).removeprefix('device: ')}") from None
    if not measured:
        raise InputError(f"{where}: hardware: missing in every measured row, a device is needed")
    if len(measured) > 1:
        raise InputError(f"{where}: --device: missing, one of {', '.join(sorted(measured))} is needed")
    return next(iter(measured.values()))


def _seconds(row: Row, where: str) -> float:
    try:
        value = float(row["step_time_s"])
    except ValueError:
        value = 0.0
    if not SHORTEST <= value <= LONGEST:
        raise InputError(
            f"{where}: {row['id']}: step_time_s: {shown(row['step_time_s'])} found, {SHORTEST:g} to {LONGEST:g} seconds"
            " are needed"
        )
    return value
