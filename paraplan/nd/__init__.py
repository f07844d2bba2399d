"""ND search: dimensions, rules, enumeration, memory filter, ranking, explanation."""

from paraplan.nd.advice import nothing_legal
from paraplan.nd.ranking import Ranked, rank
from paraplan.nd.search import (
    SearchResult,
    filter_memory,
    layout_json,
    predicted,
    ranked_step_times,
    ratios_text,
    recalibrated,
    search,
)
from paraplan.nd.search_spec import SearchSpec
from paraplan.nd.space import Space, enumerate_space

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
