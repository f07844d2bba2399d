"""Accuracy: every measured run and every labelled layout, predicted and scored.

python benchmarks/accuracy.py [--json FILE] [--plots DIR] [--left-out]

With --left-out the constants of every device type are also fitted again without one source at a time, from neutral
starting values, and that source is predicted with them (some ten minutes on two cores).
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from paraplan import time as performance
from paraplan.question.clusters.spec import Efficiency
from paraplan.runs.calibration import calibrate
from paraplan.runs.table import Answer, answer, estimate_table, framework_of, read_rows

DATA = Path(__file__).parent / "data"


def summary(rows: list[dict], key: str) -> None:
    """Bias and mean absolute error of the step time by ``key``."""
    groups = defaultdict(list)
    for row in rows:
        groups[row[key]].append(row["error"])
    print(f"\nstep time by {key}: runs, bias, mean absolute error, within which 80 % lie")
    for name, errors in sorted(groups.items()):
        found = np.array(errors)
        print(
            f"  {name:24} {len(found):4} {found.mean():+7.1%} {np.abs(found).mean():7.1%}"
            f" {np.quantile(np.abs(found), 0.8):7.1%}"
        )


def worst(rows: list[dict], count: int = 10) -> None:
    """The rows that are most off, by term."""
    print(f"\nthe {count} worst rows: measured, predicted, and where the prediction goes (seconds)")
    for row in sorted(rows, key=lambda row: -abs(np.log(1 + row["error"])))[:count]:
        table = performance.estimate(row["found"].problem, row["found"].layout)
        terms = sorted(((float(value[0]), name) for name, value in table.components.items()), reverse=True)
        told = ", ".join(f"{name} {seconds:.3g}" for seconds, name in terms[:5] if seconds > 0)
        print(
            f"  {row['id']:18} {row['model']:18} {row['measured']:9.4g} {row['predicted']:9.4g}"
            f" ({row['error']:+.0%}) {told}"
        )


def rates(rows: list[dict[str, str]], predicted: dict[str, dict[str, str]]) -> None:
    """Runs that give a rate but no step time: predicted over measured FLOP/s, causal attention counted once."""
    groups = defaultdict(list)
    for row in rows:
        if not row["step_time_s"] and row["tflops_per_gpu"]:
            kind = "ZeRO-3" if row["zero_stage"] == "3" else "ZeRO-1"
            error = float(predicted[row["id"]]["tflops_per_device"]) / float(row["tflops_per_gpu"]) - 1
            groups[f"{row['source_key']}, {kind}"].append(error)
    print("\nruns that give FLOP/s and no step time: runs, bias, mean absolute error")
    for name, errors in sorted(groups.items()):
        print(f"  {name:24} {len(errors):4} {np.mean(errors):+7.1%} {np.mean(np.abs(errors)):7.1%}")


def labels(path: Path) -> dict[str, float]:
    """Share of labels that are right, and of the layouts called fitting those that ran out of memory."""
    rows = read_rows(path)
    called = [answer(row).fits for row in rows]
    truth = [row["fits"] == "yes" for row in rows]
    right = sum(a == b for a, b in zip(called, truth, strict=True))
    false = sum(a and not b for a, b in zip(called, truth, strict=True))
    return {
        "labels": len(rows),
        "right": right / len(rows),
        "called_fitting": sum(called),
        "out_of_memory": false / sum(called),
    }


DEVICE_FAMILIES = (("a100-40gb-sxm", "a100-80gb-sxm"), ("h100-80gb-sxm", "h200-141gb-sxm"), ("b200-180gb-sxm",))
"""Device types with more than one source, and those that share their constants."""

NEUTRAL = Efficiency(matmul=0.65, attention=0.5, attention_flash2=0.35, intra_link=0.7, launch_seconds=6e-6)


def predicted_with(found: list[Answer], efficiency: Efficiency) -> np.ndarray:
    """Step times of answered rows with other constants, in seconds."""
    times = []
    for one in found:
        assert one.problem is not None and one.layout is not None, "every row with a step time is answered"
        cluster = one.problem.cluster
        changed = replace(cluster, device=replace(cluster.device, efficiency=efficiency))
        times.append(performance.step_times(replace(one.problem, cluster=changed), one.layout)[0])
    return np.array(times)


def left_out(rows: list[dict], source: str, devices: tuple[str, ...]) -> tuple[str, str, list[float], list[float]]:
    """Errors by group of ``source`` predicted with constants that its rows had no part in, and with the catalogue's."""
    own = [row for row in rows if row["found"].problem.cluster.device.name in devices]
    fitted_on = [row for row in own if row["source"] != source]
    sizes = defaultdict(int)
    for row in fitted_on:
        sizes[row["group"]] += 1
    weights = np.array([1 / sizes[row["group"]] for row in fitted_on])
    answers = [row["found"] for row in fitted_on]
    measured = np.array([row["measured"] for row in fitted_on])
    known = fitted_on[0]["found"].problem.cluster.device.efficiency
    start = replace(NEUTRAL, fp8=known.fp8, fp4=known.fp4)
    constants = calibrate(start, lambda tried: predicted_with(answers, tried), measured, weights).efficiency
    left = [row for row in own if row["source"] == source]
    without, with_all = defaultdict(list), defaultdict(list)
    for row, time in zip(left, predicted_with([row["found"] for row in left], constants), strict=True):
        without[row["group"]].append(abs(time / row["measured"] - 1))
        with_all[row["group"]].append(abs(row["error"]))
    return (
        devices[0],
        source,
        [float(np.mean(v)) for v in without.values()],
        [float(np.mean(v)) for v in with_all.values()],
    )


def leave_sources_out(rows: list[dict]) -> None:
    """The table of sources left out."""
    jobs = []
    for devices in DEVICE_FAMILIES:
        own = [row for row in rows if row["found"].problem.cluster.device.name in devices]
        jobs += [(source, devices) for source in sorted({row["source"] for row in own})]
    print("\nsource left out: groups, error without it, error with all")
    every, before = [], []
    with ProcessPoolExecutor(2) as pool:
        running = [pool.submit(left_out, rows, source, devices) for source, devices in jobs]
        for one in running:
            device, source, without, with_all = one.result()
            every += without
            before += with_all
            print(
                f"  {device:16} {source:14} {len(without):4} {np.mean(without):7.1%} {np.mean(with_all):7.1%}",
                flush=True,
            )
    print(f"  {'all of these':31} {len(every):4} {np.mean(every):7.1%} {np.mean(before):7.1%}")


def plots(rows: list[dict], folder: Path) -> None:
    """Predicted against measured, by device type and by source."""
    from matplotlib.figure import Figure

    for key in ("device", "source"):
        figure = Figure(figsize=(7.5, 6), dpi=110, layout="constrained")
        axes = figure.add_subplot()
        for i, name in enumerate(sorted({row[key] for row in rows})):
            own = [row for row in rows if row[key] == name]
            axes.scatter(
                [row["measured"] for row in own],
                [row["predicted"] for row in own],
                s=14,
                alpha=0.75,
                marker="osD^vP"[i // 10 % 6],
                color=f"C{i % 10}",
                label=f"{name} ({len(own)})",
            )
        ends = [min(row["measured"] for row in rows), max(row["measured"] for row in rows)]
        axes.plot(ends, ends, color="#444444", linewidth=1)
        for off in (0.9, 1.1):
            axes.plot(ends, [off * x for x in ends], color="#999999", linewidth=0.7, linestyle="--")
        axes.set(xscale="log", yscale="log", xlabel="measured step, s", ylabel="predicted step, s")
        axes.set_title(f"Predicted against measured, by {key} (dashed: ±10 %)", fontsize=11)
        axes.legend(fontsize=7, loc="upper left", ncols=2)
        axes.grid(alpha=0.2)
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"accuracy_{key}.png", metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description="Predict the measured runs and score them.")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plots", metavar="DIR")
    parser.add_argument("--left-out", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "predicted.csv"
        answered, refused = estimate_table(DATA / "runs.csv", output)
        print(f"{answered} rows answered, {refused} refused")
        scored = subprocess.run(
            [sys.executable, str(Path(__file__).parent / "score_runs.py"), str(DATA / "runs.csv"), str(output)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        print(scored)
        predicted = {row["id"]: row for row in csv.DictReader(output.open())}
    rows = []
    for row in read_rows(DATA / "runs.csv"):
        if row["step_time_s"]:
            measured, time = float(row["step_time_s"]), float(predicted[row["id"]]["step_time_s"])
            rows.append(
                {
                    "id": row["id"],
                    "model": row["model"],
                    "device": row["hardware"],
                    "source": row["source_key"],
                    "group": row["rank_group"] or f"{row['source_key']}|{row['model']}|{row['hardware']}",
                    "framework": framework_of(row).name,
                    "measured": measured,
                    "predicted": time,
                    "error": time / measured - 1,
                    "found": answer(row),
                }
            )
    for key in ("device", "source", "framework"):
        summary(rows, key)
    rates(read_rows(DATA / "runs.csv"), predicted)
    worst(rows)
    fits = labels(DATA / "fits.csv")
    print(
        f"\nfits.csv: {fits['right']:.1%} of {fits['labels']} labels right; of {fits['called_fitting']} called fitting"
        f" {fits['out_of_memory']:.1%} ran out of memory"
    )
    if given.left_out:
        leave_sources_out(rows)
    if given.plots:
        plots(rows, Path(given.plots))
    if given.json:
        kept = [{key: value for key, value in row.items() if key != "found"} for row in rows]
        Path(given.json).write_text(json.dumps({"runs": kept, "fits": fits}, indent=1) + "\n")


if __name__ == "__main__":
    main()
