"""Search speed: layouts a second through enumeration, memory and time, memory use, growth, against a plain loop.

    python benchmarks/search.py [--json FILE] [--plot FILE] [--streaming]

One core. With --streaming a space of 10^8 layouts is searched last. Peer figures are those that
``benchmarks/data/README.md`` records, measured elsewhere on two cores.
"""

import argparse
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

from paraplan import memory
from paraplan import time as performance
from paraplan.foundation.errors import NoAnswerError
from paraplan.question.clusters import load_device, make_cluster
from paraplan.question.frameworks import load_framework
from paraplan.question.models import load_model
from paraplan.question.problem import Problem
from paraplan.question.search_spec import UNSEARCHED
from paraplan.question.training import TrainingSpec
from paraplan.search import SearchSpec, search
from paraplan.search.space import blocks_of

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.reference.memory import peak
from tests.reference.time import step

PEERS = {"Megatron's memory formula alone": 148_000, "llm-analysis": 3_800, "calculon": 150, "SimuMax": 12}

CASES = (
    ("gpt3-175b", "a100", 1536, 2048, (64, 256, 1024, 4096, 16384)),
    ("deepseek-v3", "h800", 15360, 4096, (256, 1024, 4096, 16384, 131072)),
)


def problem_of(model: str, device: str, devices: int, batch: int, sequence: int) -> Problem:
    return Problem(
        load_model(model),
        make_cluster(load_device(device), devices),
        TrainingSpec(sequence, batch),
        load_framework("megatron"),
    )


STREAMING = SearchSpec(
    {"recompute": (0, 1, 2, 3, 4), "recompute_layers": (-1, *range(1, 11)), "cp_kind": None, "swap_os": None}
)
"""Over DeepSeek-V3 on 49,152 devices: about 10^8 layouts."""


def plot(rows: list[dict], path: str) -> None:
    """Seconds of the whole searches over the size of the space."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.2), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for i, model in enumerate(sorted({row["model"] for row in rows})):
        own = sorted((row["candidates"], row["seconds"]) for row in rows if row["model"] == model)
        axes.plot(*zip(*own, strict=True), "o-", color=f"C{i}", label=model)
    ends = [min(row["candidates"] for row in rows), max(row["candidates"] for row in rows)]
    axes.plot(ends, [x / 1e6 for x in ends], color="#888888", linestyle="--", label="1,000,000 layouts a second")
    axes.set(xscale="log", yscale="log", xlabel="layouts in the space", ylabel="seconds of the whole search")
    axes.set_title("Search time grows with the space, one core", fontsize=11)
    axes.grid(alpha=0.2)
    axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Software": None})


def whole_search(problem: Problem, opened: SearchSpec) -> dict:
    began = time.perf_counter()
    try:
        found = search(problem, opened)
        candidates, fitting = found.candidates, found.fitting
    except NoAnswerError:
        candidates, fitting = sum(len(block) for block in blocks_of(problem, opened)), 0
    seconds = time.perf_counter() - began
    return {"candidates": candidates, "fitting": fitting, "seconds": seconds, "per_second": candidates / seconds}


def models_alone(problem: Problem, count: int = 1_000_000) -> float:
    """Layouts a second through memory and time, every layout through both, blocks of 65,536 random layouts."""
    pool = next(iter(blocks_of(problem, SearchSpec(), block_rows=count)))
    rng = np.random.default_rng(0)
    blocks = [pool.take(rng.integers(0, len(pool), 65536)) for _ in range(count // 65536)]
    began = time.perf_counter()
    for block in blocks:
        memory.peaks(problem, block)
        performance.step_times(problem, block)
    return sum(len(block) for block in blocks) / (time.perf_counter() - began)


def one_by_one(problem: Problem, count: int = 2000) -> float:
    """Layouts a second of the same formulas in plain Python, one layout at a time."""
    pool = next(iter(blocks_of(problem, SearchSpec())))
    rows = [pool.row(i) for i in np.random.default_rng(0).integers(0, len(pool), count)]
    began = time.perf_counter()
    for row in rows:
        peak(problem, row)
        step(problem, row)
    return count / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the ND search.")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE")
    parser.add_argument("--streaming", action="store_true")
    given = parser.parse_args()
    rows = []
    everything = SearchSpec(dict.fromkeys(UNSEARCHED))
    print(f"{'model':12} {'devices':>8} {'space':8} {'layouts':>12} {'fit':>12} {'seconds':>8} {'layouts/s':>12}")
    for model, device, batch, sequence, sizes in CASES:
        for devices in sizes:
            problem = problem_of(model, device, devices, batch, sequence)
            for name, opened in (("usual", SearchSpec()), ("all open", everything)):
                if name == "all open" and devices not in (4096, 16384):
                    continue
                row = {"model": model, "devices": devices, "space": name, **whole_search(problem, opened)}
                rows.append(row)
                print(
                    f"{model:12} {devices:8,} {name:8} {row['candidates']:12,} {row['fitting']:12,}"
                    f" {row['seconds']:8.2f}"
                    f" {row['per_second']:12,.0f}",
                    flush=True,
                )
    if given.streaming:
        row = {"model": "deepseek-v3", "devices": 49152, "space": "streaming"}
        row |= whole_search(problem_of("deepseek-v3", "h800", 49152, 46080, 4096), STREAMING)
        rows.append(row)
        print(f"{row['candidates']:,} layouts in {row['seconds']:.0f} s, {row['per_second']:,.0f} layouts/s")
    models = {}
    for model, device, batch, sequence, _ in CASES:
        problem = problem_of(model, device, 4096, batch, sequence)
        models[model] = {
            "memory_and_time_per_second": models_alone(problem),
            "one_by_one_per_second": one_by_one(problem),
        }
        print(
            f"{model}: memory and time models {models[model]['memory_and_time_per_second']:,.0f} layouts/s in blocks,"
            f" {models[model]['one_by_one_per_second']:,.0f} in plain Python"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of all searches: {peak:,.0f} MiB")
    for name, rate in PEERS.items():
        print(f"recorded peer: {name}: {rate:,} layouts/s")
    if given.plot:
        plot(rows, given.plot)
    if given.json:
        Path(given.json).write_text(json.dumps({"searches": rows, "models": models, "peak_mib": peak}, indent=1) + "\n")


if __name__ == "__main__":
    main()
