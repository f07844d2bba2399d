"""Why no assignment respects the memory limit, and the smallest limit that does, proven where the time allows."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from paraplan.balance import model
from paraplan.balance.problem import BalanceProblem
from paraplan.balance.restrictions import Counts
from paraplan.foundation.errors import InputError
from paraplan.question.balance_spec import BalanceSpec

RESTRICTIONS = (
    "offset", "recompute", "select_recompute", "select_comm_recompute", "pins", "forbidden", "equal_chunks",
)  # fmt: skip
"""Options that can leave no assignment whatever the memory."""


class ContradictionError(InputError):
    """Restrictions that no assignment keeps to, whatever the memory."""


@dataclass(frozen=True, slots=True)
class Need:
    """A memory limit that some assignment respects."""

    mib: float
    stage: int | None
    """The stage that gets it, the others as given; None: every stage."""
    proven: bool
    """No smaller one does."""

    def text(self, limit: float) -> str:
        """For people; ``limit`` is the one that is not enough."""
        where = "on every stage" if self.stage is None else f"on stage {self.stage}, the others as given"
        if self.proven:
            return f"the smallest limit that does is {above(self.mib, limit)} MiB {where}"
        return f"the smallest limit that does is at most {above(self.mib, limit)} MiB {where}"


def shortfall(problem: BalanceProblem, lightest: Counts) -> str:
    """Which stage ``lightest``, even chunks with the strategies that keep least, puts over its limit; empty: none."""
    peaks, limits = problem.peak_memory(lightest), problem.costs.limit_P
    worst = int((peaks - limits).argmax())
    limit = float(limits[worst])
    if peaks[worst] <= limit:
        return ""
    return (
        f"with even chunks and the strategies that keep least, stage {worst} needs"
        f" {above(float(peaks[worst]), limit)} MiB of {limit:,.10g}"
    )


def need(problem: BalanceProblem, solver: str, deadline: float, lightest: Counts) -> Need | None:
    """What one stage must be raised to where that is enough, else all of them; None: nothing was found in the time.

    Raises:
        ContradictionError: no assignment keeps to the restrictions, whatever the memory.
    """
    every = tuple(range(problem.stages))
    common = _smallest(problem, every, solver, deadline, lightest)
    if len(set(problem.memory_limit_mib)) == 1:
        return common
    alone: Need | None = None
    for s in sorted(every, key=lambda s: problem.memory_limit_mib[s]):
        if time.monotonic() > deadline:
            break
        try:
            found = _smallest(problem, (s,), solver, deadline)
        except ContradictionError:
            continue
        raised = math.inf if alone is None else alone.mib - problem.memory_limit_mib[alone.stage or 0]
        if found is not None and found.mib - problem.memory_limit_mib[s] < raised:
            alone = replace(found, stage=s)
    return alone or common


def _smallest(
    problem: BalanceProblem, raised: tuple[int, ...], solver: str, deadline: float, known: Counts | None = None
) -> Need | None:
    """The smallest limit of the stages ``raised``, the others as given; ``known`` is an assignment to beat."""
    if len(raised) == problem.stages:
        # All by as much must mean all to as much.
        problem = replace(problem, memory_limit_mib=(min(problem.memory_limit_mib),) * problem.stages)
    program = model.IntegerProgram(problem, [], raised)
    status, counts = program.least_raise(solver, deadline)
    if status == "infeasible":
        if len(raised) == problem.stages:
            raise ContradictionError(contradiction(problem, solver, deadline))
        raise ContradictionError("the other stages need more too")
    found = []
    if counts is not None:
        found.append(counts)
    if known is not None and status != "optimal" and problem.restrictions.hold(known):
        found.append(known)
    peaks = [max(float(problem.peak_memory(one)[s]) for s in raised) for one in found]
    return Need(min(peaks), None, status == "optimal") if peaks else None


def contradiction(problem: BalanceProblem, solver: str, deadline: float) -> str:
    """The restrictions that leave no assignment whatever the memory: fewer of them leave one."""
    given = list(_given(problem.spec))
    blamed = list(given)
    for name in given:
        spec = replace(problem.spec, **{name: getattr(BalanceSpec(), name)})
        without = replace(problem, spec=spec)
        program = model.IntegerProgram(without, [], range(problem.stages))
        if time.monotonic() < deadline and program.least_raise(solver, deadline)[0] == "infeasible":
            problem = without
            blamed.remove(name)
    if not blamed:
        return (
            "format: mindformers found, whose lists cannot say select and comm on one chunk, which these layers need;"
            " any is needed"
        )
    if len(blamed) == 1:
        return f"{blamed[0]}: no assignment of the layers keeps to it, whatever the memory"
    return f"{' and '.join(blamed)}: they contradict each other: no assignment keeps to all, whatever the memory"


def _given(spec: BalanceSpec) -> Iterator[str]:
    for name in RESTRICTIONS:
        if getattr(spec, name) not in (None, (), False):
            yield name


def above(mib: float, limit: float) -> str:
    """``mib`` rounded up, with as many digits as show that it is more than ``limit``."""
    for digits in range(10):
        # What floating point adds to a sum is no MiB more.
        shown = math.ceil(mib * (1 - 1e-12) * 10**digits) / 10**digits
        if shown > limit and shown - mib <= 1e-3 * mib:
            return f"{shown:,.{digits}f}"
    return f"{mib:,.17g}"
