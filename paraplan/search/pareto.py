"""The front of step time and memory: layouts that no other beats in both."""

import numpy as np

from paraplan import memory
from paraplan.question.problem import Problem
from paraplan.question.search_spec import SearchSpec
from paraplan.search.ranking import Ranked
from paraplan.search.search import ranked_step_times
from paraplan.search.space import blocks_of, concatenate


def front(problem: Problem, search: SearchSpec) -> Ranked:
    """The Pareto front of all legal layouts, fastest first; it ignores the memory budget, so that it shows what more
    memory would buy."""
    kept: Ranked | None = None
    for block in blocks_of(problem, search):
        own = Ranked(block, ranked_step_times(problem, search, block), memory.peaks(problem, block))
        own = own.take(_undominated(own))
        if kept is not None:
            own = Ranked(
                concatenate([kept.layouts, own.layouts]),
                np.concatenate([kept.step_time_N, own.step_time_N]),
                np.concatenate([kept.peak_N, own.peak_N]),
            )
            own = own.take(_undominated(own))
        kept = own
    assert kept is not None, "the search found a layout"
    return kept


def _undominated(ranked: Ranked) -> np.ndarray:
    """Positions of the front, fastest first."""
    positions = np.lexsort((ranked.peak_N, ranked.step_time_N))
    peaks = ranked.peak_N[positions]
    least_before = np.concatenate([[np.inf], np.minimum.accumulate(peaks)[:-1]])
    return positions[peaks < least_before]
