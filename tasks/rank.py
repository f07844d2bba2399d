"""Step 8: the final order, by the simulated step."""

from dataclasses import asdict
from typing import Any

from paraplan import performance
from paraplan.nd import layout_json
from paraplan.plan_document import GIB, RankedPlan, time_parts
from paraplan.problem import Problem
from tasks.caching import Result, step
from tasks.logs import step_logger

MIB_PER_GIB = 1024.0


@step(
    "rank",
    run_name="rank {problem.model.name} by the simulated step",
    modules=("paraplan.nd", "paraplan.performance", "paraplan.plan_document"),
)
def rank_plans(problem: Problem, played: list[dict[str, Any]]) -> Result:
    """Order the plans by their simulated step.

    Args:
        problem: The question.
        played: For each planned layout what ``select``, ``balance`` and ``simulate`` found, merged.
    """
    ordered = sorted(played, key=lambda plan: (plan["makespan"] + plan["outside"], plan["name"]))
    plans = [asdict(_ranked(problem, i + 1, plan)) for i, plan in enumerate(ordered)]
    for plan in plans:
        step_logger(__name__).info("%d. %s: %.4g s a step", plan["rank"], plan["name"], plan["step_time_s"])
    return {"plans": plans, "timelines": [plan["timeline"] for plan in ordered]}


def _ranked(problem: Problem, rank: int, plan: dict[str, Any]) -> RankedPlan:
    pipeline = plan["pipeline"]
    step_time = plan["makespan"] + plan["outside"]
    return RankedPlan(
        rank=rank,
        name=plan["name"],
        parallel=layout_json(plan["layout"]),
        pipeline=pipeline,
        step_time_s=step_time,
        estimated_step_time_s=plan["step_time"],
        tokens_per_s_per_device=float(performance.tokens_per_second_per_device(problem, step_time)),
        mfu=float(performance.mfu(problem, step_time)),
        peak_memory_gib=max(pipeline["peak_memory_mib"]) / MIB_PER_GIB,
        time_s=time_parts(plan["time"], plan["makespan"], pipeline["bubble"], plan["outside"]),
        memory_gib={name: size / GIB for name, size in plan["memory"].items()},
    )
