"""Step 7, for each balanced layout: play the pipeline block by block, draw it, time the whole step."""

from typing import Any

from paraplan import time as performance
from paraplan.balance.play import given_of, play
from paraplan.plan.plots.timeline import timeline_svg
from paraplan.question.layouts import Layouts
from paraplan.question.problem import Problem
from tasks.caching import Result, step
from tasks.logs import step_logger


@step(
    "simulate",
    run_name="simulate {name}",
    modules=("paraplan.simulate", "paraplan.time", "paraplan.balance", "paraplan.plan.plots.timeline"),
    ignored=("name",),
    isolated=True,
)
def simulate_pipeline(name: str, problem: Problem, layout: dict[str, int], pipeline: dict[str, Any]) -> Result:
    """Time the blocks of one balanced pipeline and what the step does outside it."""
    row = Layouts.of([layout])
    outside = float(performance.layer_times(problem, row).outside_N[0])
    given = given_of(pipeline, name)
    played = play(given)
    step_logger(__name__).info("%s: %.4g s in the pipeline, %.4g s outside it", name, played.makespan, outside)
    title = f"{name}, {given.problem.schedule}: {played.makespan:.4g} s, {pipeline['bubble']['total']:.1%} bubble"
    drawing = timeline_svg(played, title, "s", tuple(pipeline["peak_memory_mib"]), given.problem.memory_limit_mib[0])
    return {"makespan": played.makespan, "outside": outside, "timeline": drawing}
