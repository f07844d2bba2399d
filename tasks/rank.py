"""Step 8: the final order, by the simulated step."""

from dataclasses import asdict
from typing import Any

from paraplan import time as performance
from paraplan.plan.document import GIB, RankedPlan, time_parts
from paraplan.question.problem import Problem
from paraplan.search import SearchSpec, layout_json, recalibrated
from tasks.caching import Result, step
from tasks.logs import step_logger

MIB_PER_GIB = 1024.0


@step(
    "rank",
    run_name="rank {problem.model.name} by the simulated step",
    modules=("paraplan.search", "paraplan.time", "paraplan.plan.document"),
)
def rank_plans(problem: Problem, search: SearchSpec, played: list[dict[str, Any]]) -> Result:
    """Order the plans by their simulated step, each part of it times its recalibration ratio.

    Args:
        problem: The question.
        search: Holds the recalibration.
        played: For each planned layout what ``select``, ``balance`` and ``simulate`` found, merged.
    """
    timed = [{**plan, **_timed(search, plan)} for plan in played]
    ordered = sorted(timed, key=lambda plan: (plan["simulated"], plan["name"]))
    plans = [asdict(_ranked(problem, i + 1, plan)) for i, plan in enumerate(ordered)]
    for plan in plans:
        step_logger(__name__).info("%d. %s: %.4g s a step", plan["rank"], plan["name"], plan["step_time_s"])
    return {"plans": plans, "timelines": [plan["timeline"] for plan in ordered]}


def _timed(search: SearchSpec, plan: dict[str, Any]) -> dict[str, Any]:
    """The simulated step and its parts in seconds, recalibrated."""
    ratios = search.recalibration
    # The estimate, by whose shares the simulated work is split, is recalibrated already; it must be so only once.
    estimated = recalibrated(plan["time"], {name: 1 / ratio for name, ratio in ratios.items()})
    played = time_parts(estimated, plan["makespan"], plan["pipeline"]["bubble"], plan["outside"])
    parts = recalibrated(played, ratios)
    step = plan["makespan"] + plan["outside"] + sum(parts[name] - played[name] for name in parts)
    return {"simulated": step, "parts": parts}


def _ranked(problem: Problem, rank: int, plan: dict[str, Any]) -> RankedPlan:
    pipeline, step_time = plan["pipeline"], plan["simulated"]
    peak = max(pipeline["peak_memory_mib"]) / MIB_PER_GIB
    memory = {name: size / GIB for name, size in plan["memory"].items()}
    return RankedPlan(
        rank=rank,
        name=plan["name"],
        parallel=layout_json(plan["layout"]),
        pipeline=pipeline,
        step_time_s=step_time,
        estimated_step_time_s=plan["step_time"],
        tokens_per_s_per_device=float(performance.tokens_per_second_per_device(problem, step_time)),
        mfu=float(performance.mfu(problem, step_time)),
        peak_memory_gib=peak,
        time_s=plan["parts"],
        # The model's parts are of an even split; what the balanced layers and strategies change is a part of its own.
        memory_gib={**memory, "balancing": peak - sum(memory.values())},
    )
