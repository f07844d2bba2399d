"""Lower bounds on the makespan of every assignment that respects the memory limit.

The linear relaxation keeps the memory rows and adds the longest path of each solution as a cut until none is missing.
It lets a layer be split over stages; the stage-total disjunction takes that back: if ``g_s(k)`` is the relaxation with
at least ``k`` whole layers on stage ``s``, a makespan ``θ`` leaves stage ``s`` at most ``max{k: g_s(k) ≤ θ}`` layers,
and all stages together need room for all of them.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import highspy
import numpy as np

from paraplan.balance.problem import BalanceProblem
from paraplan.balance.quiet import silence_greeting
from paraplan.balance.rows import Row, Rows
from paraplan.foundation.arrays import Array
from paraplan.foundation.threads import WORKERS, run_all

PRECISION = 1e-9
"""Relative: how far a path may exceed the relaxation's makespan without becoming a cut."""

KEPT_CUTS = 100
"""Cuts of earlier stages that the disjunction carries on."""

ROUGH = 2e-3
"""The same inside the disjunction: a missing cut only weakens the bound, by less than this."""


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A converged relaxation."""

    bound: float
    """Infinite: no assignment respects the limit, even with layers split."""
    counts_TRC: Array
    converged: bool


class Relaxation:
    """The linear relaxation, kept by HiGHS between solves."""

    def __init__(self, problem: BalanceProblem, deadline: float, cuts: Sequence[Row] = ()) -> None:
        self.problem, self.rows, self.deadline = problem, Rows(problem), deadline
        self.cuts: list[Row] = []
        size = self.rows.size
        silence_greeting()
        self.highs = highspy.Highs()  # type: ignore[no-untyped-call]
        self.highs.silent()
        self.highs.setOptionValue("threads", 1)
        infinite = highspy.kHighsInf
        allowed = problem.restrictions.allowed_TRC.reshape(-1)
        for i in range(size):
            self.highs.addVar(0.0, infinite if allowed[i] else 0.0)
        self.highs.addVar(0.0, infinite)
        self.highs.changeColCost(size, 1.0)
        every = np.arange(size, dtype=np.int32).reshape(self.rows.shape)
        for t, count in enumerate(problem.costs.count_T):
            index = every[t].reshape(-1)
            self.highs.addRow(float(count), float(count), len(index), index, np.ones(len(index)))
        for row in self.rows.memory():
            self._add(row, path=False)
        self.stage_rows = []
        for s in range(problem.stages):
            index = every[:, :, problem.stage_of == s].reshape(-1)
            self.stage_rows.append(self.highs.getNumRow())
            self.highs.addRow(0.0, infinite, len(index), index, np.ones(len(index)))
        for fixed in problem.restrictions.rows():
            index = fixed.index.astype(np.int32)
            self.highs.addRow(fixed.lower, fixed.upper, len(index), index, np.ones(len(index)))
        if cuts:
            for row in cuts:
                self.cuts.append(row)
                self._add(row, path=True)
            return
        even = np.zeros(self.rows.shape)
        for t in range(self.rows.shape[0]):
            first = int(np.flatnonzero(problem.costs.usable_TR[t])[0])
            even[t, first] = problem.costs.count_T[t] / problem.places
        self.cut(even)
        for s in range(problem.stages):
            lifted = even.copy()
            lifted[:, :, problem.stage_of == s] *= 2
            self.cut(lifted)

    def _add(self, row: Row, *, path: bool) -> None:
        index = np.flatnonzero(row.coefficients).astype(np.int32)
        values = row.coefficients[index]
        if path:
            index = np.append(index, np.int32(self.rows.size))
            values = np.append(values, -1.0)
        self.highs.addRow(-highspy.kHighsInf, row.right, len(index), index, values)

    def cut(self, counts_TRC: Array) -> Row:
        """Add the longest path of an assignment."""
        row = self.rows.critical(counts_TRC)
        self.cuts.append(row)
        self._add(row, path=True)
        return row

    def solve(self, stop_above: float = np.inf, precision: float = PRECISION) -> Relaxed:
        """Cut until no path is missing, the deadline is near, or the bound exceeds ``stop_above``."""
        bound, counts = 0.0, np.zeros(self.rows.shape)
        while True:
            self.highs.run()
            status = self.highs.getModelStatus()
            if status == highspy.HighsModelStatus.kInfeasible:
                return Relaxed(np.inf, counts, True)
            if status != highspy.HighsModelStatus.kOptimal:
                return Relaxed(bound, counts, False)
            values = np.array(self.highs.getSolution().col_value)
            bound = float(values[-1])
            counts = np.maximum(values[:-1], 0.0).reshape(self.rows.shape)
            if bound > stop_above:
                return Relaxed(bound, counts, False)
            row = self.rows.critical(counts)
            length = float(row.coefficients @ counts.reshape(-1)) - row.right
            if length <= bound * (1 + precision) or time.monotonic() > self.deadline:
                return Relaxed(bound, counts, length <= bound * (1 + precision))
            self.cuts.append(row)
            self._add(row, path=True)

    def forget(self, rows: int) -> None:
        """Drop the cuts beyond the first ``rows`` rows: those of one stage seldom bind for the next."""
        count = self.highs.getNumRow()
        if count > rows:
            self.highs.deleteRows(count - rows, np.arange(rows, count, dtype=np.int32))

    def with_layers(self, stage: int, least: float, most: float, stop_above: float) -> float:
        """The relaxation's bound where ``stage`` holds from ``least`` to ``most`` layers."""
        self.highs.changeRowBounds(self.stage_rows[stage], least, most)
        bound = self.solve(stop_above, ROUGH).bound
        self.highs.changeRowBounds(self.stage_rows[stage], 0.0, highspy.kHighsInf)
        return bound


def disjunction(relaxation: Relaxation, root: Relaxed, incumbent: float) -> float:
    """The stage-total disjunction: a bound between the relaxation's and the incumbent."""
    problem = relaxation.problem
    layers = int(problem.costs.count_T.sum())
    shares = [range(i, problem.stages, WORKERS) for i in range(WORKERS)]
    own = [Relaxation(problem, relaxation.deadline, relaxation.cuts) for _ in shares]

    def stop() -> None:
        for one in own:
            one.deadline = 0.0

    found = run_all(lambda i: _stage_steps(own[i], root, incumbent, shares[i]), range(WORKERS), stop)
    steps = [one for share in found for one in share]
    for theta in sorted({value for stage_steps in steps for value, _ in stage_steps}):
        if theta >= incumbent:
            break
        room = sum(max(k for value, k in stage_steps if value <= theta) for stage_steps in steps)
        if room >= layers:
            return max(root.bound, theta)
    return incumbent


def _stage_steps(own: Relaxation, root: Relaxed, incumbent: float, stages: range) -> list[list[tuple[float, int]]]:
    """For each stage (bound, k): from this makespan on it may hold k layers."""
    problem = own.problem
    layers = int(problem.costs.count_T.sum())
    held = root.counts_TRC.sum(axis=(0, 1))
    rows = own.highs.getNumRow()
    steps = []
    for s in stages:
        own.forget(rows + KEPT_CUTS)
        k = int(np.ceil(float(held[problem.stage_of == s].sum()) - 1e-6))
        # The relaxation itself allows fewer.
        stage_steps = [(root.bound, k - 1)]
        while k <= layers:
            if time.monotonic() > own.deadline:
                # What was not computed may be allowed from the root on.
                stage_steps.append((root.bound, layers))
                break
            value = own.with_layers(s, float(k), highspy.kHighsInf, incumbent)
            if value >= incumbent:
                break
            # Rough solves may stop below the relaxation's own bound.
            stage_steps.append((max(value, root.bound), k))
            k += 1
        steps.append(stage_steps)
    return steps


def quick_bound(problem: BalanceProblem) -> float:
    """The relaxation's bound within a second; 0 where no assignment respects the limit."""
    limits = tuple(min(limit, 1e18) for limit in problem.memory_limit_mib)
    found = Relaxation(replace(problem, memory_limit_mib=limits), time.monotonic() + 1.0).solve()
    return found.bound if np.isfinite(found.bound) else 0.0
