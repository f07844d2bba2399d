"""The integer program: whole layers, exact memory rows, longest paths added as cuts until the program is exact."""

import tempfile
import threading
import time
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pulp

from paraplan.balance.problem import BalanceProblem
from paraplan.balance.quiet import silence_greeting
from paraplan.balance.restrictions import Counts
from paraplan.balance.rows import Row, Rows
from paraplan.foundation.arrays import Array
from paraplan.foundation.errors import InputError
from paraplan.foundation.threads import run_all

SOLVERS = {
    "highs": "HiGHS",
    "cbc": "PULP_CBC_CMD",
    "gurobi": "GUROBI",
    "scip": "SCIP_PY",
    "cplex": "CPLEX_PY",
    "glpk": "GLPK_CMD",
}
"""Names people type, to PuLP's."""


TOLERANCE = 2e-6
"""Solvers may break a row by a millionth."""


@dataclass(frozen=True, slots=True)
class Solved:
    """The integer program's answer."""

    counts_TRC: Counts | None
    """None: none was found."""
    bound: float
    """Valid for every assignment; infinite where none respects the limit."""
    value: float
    """The program's own makespan for its assignment."""
    optimal: bool


def solver_names() -> list[str]:
    """The solvers that are installed here."""
    usable = set(pulp.listSolvers(onlyAvailable=True))
    return [name for name, theirs in SOLVERS.items() if theirs in usable]


def check_solver(name: str) -> str:
    """The name to use: HiGHS where it is asked for and missing becomes CBC.

    Raises:
        InputError: unknown or not installed; names those that are.
    """
    usable = solver_names()
    key = name.lower()
    if key == "highs" and key not in usable and "cbc" in usable:
        return "cbc"
    if key not in SOLVERS or key not in usable:
        raise InputError(f"solver: {name!r} found, installed are {', '.join(usable) or 'none'}")
    return key


class IntegerProgram:
    """The program over PuLP, with the cuts collected so far.

    With stages ``raised`` it seeks, instead of the shortest makespan, the least by which the memory limits of these
    stages must be raised, all by as much.
    """

    def __init__(self, problem: BalanceProblem, cuts: list[Row], raised: Collection[int] = ()) -> None:
        self.problem, self.rows, self.raised = problem, Rows(problem), raised
        self.program = pulp.LpProblem("balance", pulp.LpMinimize)
        costs, shape, allowed = problem.costs, self.rows.shape, problem.restrictions.allowed_TRC
        self.makespan = self.program.add_variable("makespan", 0)
        self.over = self.program.add_variable("over", 0) if raised else None
        self.counts = [
            self.program.add_variable(
                f"n_{t}_{r}_{q}", 0, int(costs.count_T[t]) if allowed[t, r, q] else 0, pulp.LpInteger
            )
            for t in range(shape[0])
            for r in range(shape[1])
            for q in range(shape[2])
        ]
        self.program += self.makespan if self.over is None else self.over
        every = np.arange(self.rows.size).reshape(shape)
        for t, count in enumerate(costs.count_T):
            self.program += pulp.lpSum(self.counts[i] for i in every[t].reshape(-1)) == int(count)
        for s in range(problem.stages):
            for row in self.rows.memory_of(s):
                self.program += self._over(row, s) <= 0
        for fixed in problem.restrictions.rows():
            total = pulp.lpSum(self.counts[i] for i in fixed.index)
            if fixed.lower == fixed.upper:
                self.program += total == fixed.lower
            else:
                self.program += total >= fixed.lower
                self.program += total <= fixed.upper
        self._add_transients(every)
        self._add_order(every)
        self._add_exclusion(every)
        for row in cuts:
            self.add(row)

    def _dot(self, row: Row) -> pulp.LpAffineExpression:
        index = np.flatnonzero(row.coefficients)
        return pulp.LpAffineExpression([(self.counts[i], float(row.coefficients[i])) for i in index])

    def _over(self, row: Row, s: int) -> pulp.LpAffineExpression:
        """What a memory row of stage ``s`` is over its limit, which may be raised."""
        over = self._dot(row) - row.right
        return over - self.over if s in self.raised else over

    def add(self, row: Row) -> None:
        """A path: the makespan is at least its length."""
        self.program += self._dot(row) - self.makespan <= row.right

    def _used(self, name: str, index: np.ndarray, most: int) -> pulp.LpVariable:
        """A binary that is 1 where any of the counts is not 0."""
        used = self.program.add_variable(name, cat=pulp.LpBinary)
        self.program += pulp.lpSum(self.counts[i] for i in index) <= most * used
        return used

    def _add_transients(self, every: np.ndarray) -> None:
        costs = self.problem.costs
        binaries: dict[tuple[int, int, int], pulp.LpVariable] = {}
        for t, r, q, row in self.rows.transients():
            if (t, r, q) not in binaries:
                most = int(costs.count_T[t])
                binaries[t, r, q] = self._used(f"u_{t}_{r}_{q}", every[t, r, q : q + 1], most)
            # The largest left side that the other rows allow is the stage's limit: the row relaxes by the transient.
            over = self._over(row, int(self.problem.stage_of[q]))
            self.program += over <= float(costs.transient_TR[t, r]) * (1 - binaries[t, r, q])

    def _add_order(self, every: np.ndarray) -> None:
        """Body types keep their order: a switch per type and place says that the type may still come there."""
        types, places = every.shape[0], every.shape[2]
        counts = self.problem.costs.count_T
        for t in range(types - 1):
            started = [self.program.add_variable(f"s_{t}_{q}", cat=pulp.LpBinary) for q in range(places)]
            for q in range(places):
                # Once a later type has started before place q, no earlier type may come at q or after.
                if q:
                    self.program += started[q] >= started[q - 1]
                later = every[t + 1 :, :, :q].reshape(-1)
                if len(later):
                    self.program += pulp.lpSum(self.counts[i] for i in later) <= int(counts[t + 1 :].sum()) * started[q]
                earlier = every[: t + 1, :, q].reshape(-1)
                self.program += pulp.lpSum(self.counts[i] for i in earlier) <= int(counts[: t + 1].sum()) * (
                    1 - started[q]
                )

    def _add_exclusion(self, every: np.ndarray) -> None:
        """MindFormers' lists cannot say select and comm on one chunk."""
        names = self.problem.strategies
        if self.problem.spec.format != "mindformers" or not {"select", "comm"} <= set(names):
            return
        most = int(self.problem.costs.count_T.sum())
        for q in range(every.shape[2]):
            one = self._used(f"select_{q}", every[:, names.index("select"), q], most)
            other = self._used(f"comm_{q}", every[:, names.index("comm"), q], most)
            self.program += one + other <= 1

    def text(self) -> str:
        """The program in LP format."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "balance.lp"
            self.program.writeLP(str(path))
            return path.read_text()

    def solve(self, solver: str, deadline: float, incumbent: Counts | None, target: float) -> Solved:
        """Solve, play the answer, add its longest path, again, until both agree.

        Args:
            solver: One of :func:`solver_names`.
            deadline: On the monotonic clock.
            incumbent: A warm start.
            target: A known makespan: proving that nothing beats it ends the loop.
        """
        bound, best, best_time, value = 0.0, incumbent, target, np.inf
        while True:
            left = deadline - time.monotonic()
            if left < 0.05:
                return Solved(best, bound, value, False)
            status, reached = self._run(solver, left, best)
            if status == "infeasible":
                return Solved(None, np.inf, np.inf, True)
            bound = max(bound, reached)
            counts = None if status == "nothing" else self._solution()
            if counts is None:
                return Solved(best, bound, value, False)
            own = float(self.makespan.value())
            if status == "optimal":
                # Proven to the solver's own precision, which its dual bound may miss by a rounding.
                bound = max(bound, own)
            played = self.problem.makespan(counts)
            if played < best_time * (1 - 1e-12) and self._within(counts):
                best, best_time = counts, played
            if best_time <= bound + TOLERANCE * max(1.0, bound):
                return Solved(best, min(bound, best_time), best_time, True)
            if played <= own + TOLERANCE * max(1.0, own):
                # The program's answer is exact; without a proof the clock stopped it.
                return Solved(best, min(bound, best_time), played, status == "optimal")
            self.add(self.rows.critical(counts.astype(np.float64)))

    def least_raise(self, solver: str, deadline: float) -> tuple[str, Counts | None]:
        """An assignment for which the limits of the raised stages are raised least.

        Returns:
            ``optimal``, ``feasible`` (less may do), ``nothing`` (found) or ``infeasible`` (however much), and the
            assignment.
        """
        status, _ = self._run(solver, deadline - time.monotonic(), None)
        counts = self._solution() if status in ("optimal", "feasible") else None
        return ("nothing" if counts is None and status != "infeasible" else status), counts

    def _solution(self) -> Counts | None:
        solution = [variable.value() for variable in self.counts]
        if any(x is None for x in solution):
            return None
        return np.rint(np.array(solution, dtype=np.float64)).astype(np.int64).reshape(self.rows.shape)

    def _within(self, counts: Counts) -> bool:
        return bool((self.problem.peak_memory(counts) <= self.problem.costs.limit_P * (1 + 1e-12)).all())

    def _run(self, solver: str, seconds: float, start: Counts | None) -> tuple[str, float]:
        """One solve: ``optimal``, ``feasible``, ``nothing`` or ``infeasible``, and a valid bound."""
        if start is not None:
            for variable, x in zip(self.counts, start.reshape(-1), strict=True):
                variable.setInitialValue(int(x))
        options: dict[str, Any] = {"msg": False, "timeLimit": max(seconds, 0.1)}
        stopped = threading.Event()
        if solver == "highs":
            options |= {"threads": 1, "gapRel": 1e-9, **_interrupts(stopped)}
        elif solver == "cbc":
            options |= {"gapRel": 1e-9, "warmStart": start is not None}
        if solver == "highs":
            silence_greeting()
        with warnings.catch_warnings():
            # The CBC that comes with PuLP 3 is announced to move to a package of its own.
            warnings.simplefilter("ignore", DeprecationWarning)
            chosen = pulp.getSolver(SOLVERS[solver], **options)
        if solver == "highs":
            run_all(self.program.solve, [chosen], stopped.set)
        else:
            self.program.solve(chosen)
        if self.program.status in (pulp.LpStatusInfeasible, pulp.LpStatusUndefined):
            return "infeasible", np.inf
        proven = self.program.sol_status == pulp.LpSolutionOptimal
        bound = float(self.makespan.value() or 0.0) if proven else 0.0
        if solver == "highs":
            found = float(self.program.solverModel.getInfo().mip_dual_bound)
            bound = found if np.isfinite(found) else bound
        if self.program.sol_status == pulp.LpSolutionNoSolutionFound:
            return "nothing", bound
        return ("optimal" if proven else "feasible"), bound


def _interrupts(stopped: threading.Event) -> dict[str, Any]:
    """Options with which HiGHS ends soon after ``stopped``."""
    from highspy import cb

    def ask(kind: object, message: object, found: object, answer: Any, own: object) -> None:
        answer.user_interrupt = stopped.is_set()

    kinds = [cb.HighsCallbackType.kCallbackMipInterrupt, cb.HighsCallbackType.kCallbackSimplexInterrupt]
    return {"callbackTuple": (ask, None), "callbacksToActivate": kinds}


def dump(problem: BalanceProblem, counts: Array) -> str:
    """The program, in LP format, with the longest path of one assignment as its first cut."""
    program = IntegerProgram(problem, [])
    program.add(program.rows.critical(counts))
    return program.text()
