"""ND search: dimensions, rules, enumeration, memory filter, ranking, explanation."""

from paraplan.question.search_spec import SearchSpec
from paraplan.search.advice import nothing_legal
from paraplan.search.ranking import Ranked, rank
from paraplan.search.search import (
    SearchResult,
    filter_memory,
    layout_json,
    predicted,
    ranked_step_times,
    ratios_text,
    recalibrated,
    search,
)
from paraplan.search.space import Space, enumerate_space

__all__ = [
    "Ranked",
    "SearchResult",
    "SearchSpec",
    "Space",
    "enumerate_space",
    "filter_memory",
    "layout_json",
    "nothing_legal",
    "predicted",
    "rank",
    "ranked_step_times",
    "ratios_text",
    "recalibrated",
    "search",
]
