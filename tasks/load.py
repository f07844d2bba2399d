"""Step 1: what is asked, in figures a person can check."""

from paraplan.operators import parameters
from paraplan.plan.document import GIB
from paraplan.plan.report import assumptions
from paraplan.question.plan_config import PlanConfig
from tasks.caching import Result, step
from tasks.logs import step_logger


@step("load", run_name="load {config.name}", modules=("paraplan.question.plan_config", "paraplan.plan.report"))
def load(config: PlanConfig) -> Result:
    """Describe the model, the cluster, the training and every assumption of a validated configuration."""
    problem = config.problem
    total, active = parameters.total(problem.model), parameters.active(problem.model)
    step_logger(__name__).info(
        "%s: %.4g B parameters (%.4g B active) on %d x %s with %.4g GiB each, global batch %d x %d tokens",
        problem.model.name,
        total / 1e9,
        active / 1e9,
        problem.cluster.devices,
        problem.cluster.device.name,
        problem.cluster.memory_budget / GIB,
        problem.training.global_batch,
        problem.training.sequence_length,
    )
    return {"assumptions": [list(row) for row in assumptions(config)]}
