"""What is searched: for every dimension a fixed value, a list of candidates, or ``auto``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from paraplan.layouts import CONTEXT_KINDS, RECOMPUTE, SCHEDULES

AUTO = None
"""Candidates follow from the model, the cluster and the batch."""

DIMENSIONS = (
    "dp", "tp", "cp", "ep", "etp", "pp", "vpp", "mbs", "mb", "sp", "zero_stage", "op", "recompute", "recompute_layers",
    "schedule", "cp_kind", "swap_act", "swap_os",
)  # fmt: skip

NAMES: Mapping[str, tuple[str, ...]] = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "cp_kind": CONTEXT_KINDS}
"""Dimensions whose values people write as words; a value is the word's index."""

ALIASES: Mapping[str, str] = {"mp": "tp", "zero": "zero_stage", "micro_batch": "mbs", "rec": "recompute"}
"""Other names people give to dimensions, in lower case."""

UNSEARCHED: Mapping[str, tuple[int, ...]] = {
    "recompute_layers": (-1,),
    "cp_kind": (0,),
    "swap_act": (0,),
    "swap_os": (0,),
}
"""Dimensions that stay at one value unless the configuration opens them."""


@dataclass(frozen=True, slots=True)
class SearchSpec:
    """The space and what is taken from it."""

    candidates: Mapping[str, tuple[int, ...] | None] = field(default_factory=lambda: MappingProxyType({}))
    """Dimension to its values; None or absent: ``auto``, except for those in :data:`UNSEARCHED`."""
    constraints: tuple[str, ...] = ()
    """Expressions over the dimensions that every layout must satisfy, e.g. ``tp * cp <= 8``."""
    top: int = 3
    """Layouts that are balanced and simulated."""
    reserve_bytes: float = 0.0
    """Memory kept back from the budget for balancing."""
    recalibration: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Ratio by which a time component is multiplied."""

    def values(self, dimension: str) -> tuple[int, ...] | None:
        """The candidates of a dimension, None where they are automatic."""
        return self.candidates.get(dimension, UNSEARCHED.get(dimension))


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))
