"""Step 4: how long a step takes with every layout that fits, assuming an even split over the stages."""

from typing import Any

from paraplan.question.problem import Problem
from paraplan.search import SearchSpec, ranked_step_times
from tasks.caching import Result, step
from tasks.logs import step_logger
from tasks.tables import pack, unpack_layouts


@step(
    "performance",
    run_name="estimate the step time of {problem.model.name}",
    modules=("paraplan.search", "paraplan.time"),
)
def estimate_time(problem: Problem, search: SearchSpec, layouts: dict[str, Any]) -> Result:
    """Estimate the step time of the fitting layouts."""
    fitting = unpack_layouts(layouts)
    step_time_N = ranked_step_times(problem, search, fitting)
    step_logger(__name__).info("best of %d layouts: %.4g s a step, even split", len(fitting), step_time_N.min())
    return {"step_time": pack({"step_time": step_time_N})}
