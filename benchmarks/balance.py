"""Balancing quality: every recorded instance, against the public predecessor's answers and the best known.

    python benchmarks/balance.py [--json FILE] [--only NAME]

Pipelines of up to 16 stages x 32 micro-batches x 2 chunks get 10 seconds, larger ones 60, on two threads.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from paraplan.balance import BalanceProblem, BalanceSpec, balance
from paraplan.balance.layer_set import read_layers

CASES = Path(__file__).parent / "data" / "cases.json"
SMALL, SHORT_S, LONG_S = 16 * 32 * 2, 10.0, 60.0


def run(case: dict) -> dict:
    """Balance one instance and compare."""
    stages, limit = case["stages"], case["memory_limit_mib"]
    size = stages * case["micro_batches"] * case["interleave"]
    spec = BalanceSpec(time_limit_s=SHORT_S if size <= SMALL else LONG_S, schedule=case["schedule"], format="any")
    problem = BalanceProblem(
        read_layers(case["layers"], case["name"]),
        stages,
        case["micro_batches"],
        case["interleave"],
        case["schedule"],
        (limit,) * stages,
        spec=spec,
    )
    began = time.perf_counter()
    plan = balance(problem)
    valid = [one["makespan"] for one in case["predecessor"] if one["makespan"] and not one["stages_over_limit"]]
    best = case["best_known"]["makespan"]
    return {
        "name": case["name"],
        "status": plan.status,
        "makespan": plan.makespan,
        "lower_bound": plan.lower_bound,
        "gap": plan.gap,
        "seconds": time.perf_counter() - began,
        "over_limit": max(plan.peak_memory_mib) > limit * (1 + 1e-9),
        "predecessor": min(valid, default=None),
        "best_known": best,
        "over_best_known": plan.makespan / best - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Balance the recorded instances.")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--only", metavar="NAME", default="")
    given = parser.parse_args()
    cases = [case for case in json.loads(CASES.read_text())["cases"] if given.only in case["name"]]
    print(
        f"{'instance':30} {'status':9} {'makespan':>9} {'bound':>9} {'gap':>7} {'s':>6}"
        f" {'predecessor':>12} {'best known':>11}"
    )
    rows = []
    for case in cases:
        row = run(case)
        rows.append(row)
        before = "none valid" if row["predecessor"] is None else f"{row['predecessor']:.0f}"
        print(
            f"{row['name']:30} {row['status']:9} {row['makespan']:9.0f} {row['lower_bound']:9.0f} {row['gap']:7.2%}"
            f" {row['seconds']:6.1f} {before:>12} {row['best_known']:11.0f} {row['over_best_known']:+.2%}"
            + (" OVER THE LIMIT" if row["over_limit"] else ""),
            flush=True,
        )
    gaps = [row["gap"] for row in rows]
    worst = max(row["over_best_known"] for row in rows)
    print(
        f"gap: median {statistics.median(gaps):.2%}, largest {max(gaps):.2%};"
        f" makespan over the best known: at most {worst:+.2%}"
    )
    if given.json:
        Path(given.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
