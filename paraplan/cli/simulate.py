"""``paraplan simulate``: play a given assignment."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from paraplan.cli.arguments import Parser, positive
from paraplan.foundation.documents import write_whole


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "plan", metavar="PLAN", help="plan.json, the JSON of paraplan ppb, or YAML with offset and recompute lists"
    )
    parser.add_argument("--schedule", help="play under this schedule instead of the plan's own")
    parser.add_argument("--rank", type=positive, default=1, help="which plan of a plan.json (1)")
    parser.add_argument("-o", "--output", metavar="DIR", help="write pipeline.json and timeline.svg here")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(arguments: argparse.Namespace) -> int:
    from paraplan.balance.balancer import plan_of
    from paraplan.balance.bounds import quick_bound
    from paraplan.balance.play import play
    from paraplan.cli.ppb import _finite, plan_text
    from paraplan.plan.playable import read_plan
    from paraplan.plan.plots.timeline import timeline_svg

    given = read_plan(Path(arguments.plan), arguments.schedule, arguments.rank)
    problem = given.problem
    plan = plan_of(problem, given.counts, "feasible", quick_bound(problem), 0.0, "simulator")
    over = [
        f"stage {s} by {peak - limit:,.1f} MiB"
        for s, (peak, limit) in enumerate(zip(plan.peak_memory_mib, problem.memory_limit_mib, strict=True))
        if peak > limit * (1 + 1e-9)
    ]
    document = _finite(asdict(plan))
    if arguments.output:
        folder = Path(arguments.output)
        write_whole(folder / "pipeline.json", json.dumps(document, indent=1) + "\n")
        title = f"{problem.layers.name}, {plan.schedule}: makespan {plan.makespan:.6g}"
        limit = None if plan.memory_limit_mib == float("inf") else plan.memory_limit_mib
        write_whole(folder / "timeline.svg", timeline_svg(play(given), title, "s", plan.peak_memory_mib, limit))
    if arguments.json:
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.write("\n".join(plan_text(plan, [])) + "\n")
    if over:
        sys.stderr.write(f"over the memory limit: {', '.join(over)}\n")
    return 0
