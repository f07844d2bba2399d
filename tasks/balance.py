"""Step 6, for each selected layout: layers and recomputation over the stages."""

import json
import math
from typing import Any

from paraplan.balance import BalanceSpec, balance, describe
from paraplan.question.layouts import Layouts
from paraplan.question.problem import Problem
from tasks.caching import Result, step
from tasks.logs import step_logger


@step(
    "balance",
    run_name="balance {name}",
    modules=("paraplan.balance",),
    ignored=("name",),
    isolated=True,
)
def balance_pipeline(name: str, problem: Problem, layout: dict[str, int], spec: BalanceSpec) -> Result:
    """Assign layers and strategies to the chunks of one layout under the memory limit.

    The limit on time is the solver's own. A layout that cannot be balanced is an answer: its status says so.
    """
    plan = balance(describe(problem, Layouts.of([layout]), spec))
    step_logger(__name__).info(
        "%s: %s after %.3g s by %s, makespan %.4g s, gap %.3g %%",
        name,
        plan.status,
        plan.seconds,
        plan.solver,
        plan.makespan,
        100 * plan.gap,
    )
    # How long the solver took differs from run to run, and no file may.
    return {"pipeline": plain({**plan.to_json(), "seconds": None})}


def plain(value: Any) -> Any:
    """The value as JSON gives it back: tuples as lists, a number that is not finite as null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return json.loads(json.dumps(value))
