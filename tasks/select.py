"""Step 5: the layouts worth balancing, with what the two models say about each."""

from typing import Any

from paraplan import memory
from paraplan.plan.document import layout_name
from paraplan.question.problem import Problem
from paraplan.search import SearchSpec, predicted, rank
from tasks.caching import Result, step
from tasks.logs import step_logger
from tasks.tables import unpack, unpack_layouts


@step(
    "select",
    run_name="select the top {top} of {problem.model.name}",
    modules=("paraplan.search", "paraplan.memory", "paraplan.time", "paraplan.plan.document"),
)
def select(
    problem: Problem, search: SearchSpec, layouts: dict[str, Any], step_time: dict[str, Any], top: int
) -> Result:
    """Take the ``top`` fastest fitting layouts and say where their time and memory go."""
    fitting = unpack_layouts(layouts)
    chosen = fitting.take(rank(fitting, unpack(step_time)["step_time"], top, problem.cluster.device.devices_per_node))
    times, memories = predicted(problem, search, chosen), memory.estimate(problem, chosen)
    selected: list[dict[str, Any]] = []
    for i in range(len(chosen)):
        row = chosen.row(i)
        selected.append(
            {
                "name": layout_name(row),
                "layout": row,
                "step_time": float(times.step_time_N[i]),
                "time": {name: float(value_N[i]) for name, value_N in times.components.items()},
                "memory": {name: float(value_N[i]) for name, value_N in memories.components.items()},
            }
        )
    step_logger(__name__).info("selected %s", ", ".join(layout["name"] for layout in selected))
    return {"selected": selected}
