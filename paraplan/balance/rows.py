"""The exact linear rows of a balancing problem: memory of every moment, length of every path.

Variables are the counts (layer type, strategy, place) in C order, then the makespan.
"""

from dataclasses import dataclass

import numpy as np

from paraplan.balance.problem import BalanceProblem
from paraplan.foundation.arrays import Array
from paraplan.schedules.orders import B, F, W


@dataclass(frozen=True, slots=True)
class Row:
    """``coefficients · counts ≤ right side`` (memory), or ``≤ makespan − constant`` (paths)."""

    coefficients: Array
    """Over the counts, flattened."""
    right: float


class Rows:
    """Builds rows for one problem."""

    def __init__(self, problem: BalanceProblem) -> None:
        self.problem, self.costs = problem, problem.costs
        self.shape = (len(problem.bodies), len(problem.strategies), problem.places)
        self.size = int(np.prod(self.shape))

    def path(self, class_counts: Array, sends: float) -> Row:
        """The row of a path: makespan ≥ its length under any assignment; ``right`` is minus its constant part."""
        problem, costs = self.problem, self.costs
        speed = costs.slowness_P[problem.stage_of] / problem.splits

        def of(operation: int) -> Array:
            classes = (operation * problem.chunks + problem.chunk_of) * problem.stages + problem.stage_of
            return np.asarray(class_counts[classes] * speed, dtype=np.float64)

        forward, backward, weight = of(F), of(B), of(W)
        coefficients = (
            costs.forward_T[:, None, None] * forward
            + costs.backward_TR[:, :, None] * backward
            + costs.weight_T[:, None, None] * weight
        )
        constant = float(class_counts @ costs.fixed_durations) / problem.splits + sends * problem.p2p
        return Row(coefficients.reshape(-1), -constant)

    def critical(self, counts_TRC: Array) -> Row:
        """The row of the longest path of an assignment, that may be fractional."""
        counts, sends = self.problem.graph.critical_path(self.problem.durations(counts_TRC), self.problem.p2p)
        return self.path(counts.astype(np.float64), sends)

    def memory(self) -> list[Row]:
        """One row for every moment of every stage, without transients (those bind through :meth:`transients`)."""
        return [row for s in range(self.problem.stages) for row in self.memory_of(s)]

    def memory_of(self, s: int) -> list[Row]:
        """The rows of stage ``s``."""
        problem, costs = self.problem, self.costs
        here = problem.stage_of == s
        rows, seen = [], set()
        for counts_V, running in zip(problem.moments[s].counts_nV, problem.moments[s].running_n, strict=True):
            key = (tuple(counts_V), running if costs.fixed_transient_VP[:, s].any() else -1)
            if key in seen:
                continue
            seen.add(key)
            held = np.where(here, counts_V[problem.chunk_of], 0) / problem.splits
            coefficients = costs.parameter_T[:, None, None] * here + costs.activation_TR[:, :, None] * held
            fixed = costs.fixed_memory_P[s] + float(counts_V @ costs.fixed_activation_VP[:, s]) / problem.splits
            if running >= 0:
                fixed += float(costs.fixed_transient_VP[running, s])
            rows.append(Row(coefficients.reshape(-1), float(costs.limit_P[s]) - fixed))
        return rows

    def transients(self) -> list[tuple[int, int, int, Row]]:
        """(type, strategy, place, row): the row must hold if that cell is used, its transient running."""
        problem, costs = self.problem, self.costs
        if not (costs.transient_TR > 0).any():
            return []
        rows = []
        for s in range(problem.stages):
            moments = problem.moments[s]
            for place in np.flatnonzero(problem.stage_of == s):
                v = int(problem.chunk_of[place])
                for counts_V in np.unique(moments.counts_nV[moments.running_n == v], axis=0):
                    here = problem.stage_of == s
                    held = np.where(here, counts_V[problem.chunk_of], 0) / problem.splits
                    coefficients = costs.parameter_T[:, None, None] * here + costs.activation_TR[:, :, None] * held
                    fixed = costs.fixed_memory_P[s] + float(counts_V @ costs.fixed_activation_VP[:, s]) / problem.splits
                    for t, r in zip(*np.nonzero((costs.transient_TR > 0) & costs.usable_TR), strict=True):
                        right = float(costs.limit_P[s]) - fixed - float(costs.transient_TR[t, r])
                        rows.append((int(t), int(r), int(place), Row(coefficients.reshape(-1), right)))
        return rows
