"""Step 3: which layouts fit."""

from typing import Any

from paraplan.question.problem import Problem
from paraplan.search import SearchSpec, filter_memory
from tasks.caching import Result, step
from tasks.logs import step_logger
from tasks.tables import pack, pack_layouts, unpack_layouts


@step(
    "memory",
    run_name="filter {problem.model.name} by memory",
    modules=("paraplan.search", "paraplan.memory"),
)
def filter_by_memory(problem: Problem, search: SearchSpec, layouts: dict[str, Any]) -> Result:
    """Keep the layouts whose heaviest stage fits the budget."""
    candidates = unpack_layouts(layouts)
    fitting, peak_N = filter_memory(problem, candidates, search)
    step_logger(__name__).info("%d of %d layouts fit in memory", len(fitting), len(candidates))
    return {"fitting": len(fitting), "layouts": pack_layouts(fitting), "peak": pack({"peak": peak_N})}
