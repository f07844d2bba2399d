"""Step 2: every layout that satisfies the frameworks' rules."""

from paraplan.foundation.errors import InputError
from paraplan.question.problem import Problem
from paraplan.search import SearchSpec, enumerate_space, nothing_legal
from tasks.caching import Result, step
from tasks.logs import step_logger
from tasks.tables import pack_layouts


@step("enumerate", run_name="enumerate layouts of {problem.model.name}", modules=("paraplan.search",))
def enumerate_layouts(problem: Problem, search: SearchSpec) -> Result:
    """List the valid layouts and count what each rule removed."""
    space = enumerate_space(problem, search)
    if not len(space.layouts):
        raise InputError(nothing_legal(problem, search))
    step_logger(__name__).info("%d layouts satisfy every rule", len(space.layouts))
    return {
        "candidates": len(space.layouts),
        "layouts": pack_layouts(space.layouts),
        "removed": {str(rule): int(count) for rule, count in sorted(space.removed.items())},
    }
