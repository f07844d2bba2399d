"""What is searched: for every dimension a fixed value, a list of candidates, or ``auto``."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from paraplan.question.layouts import CONTEXT_KINDS, RECOMPUTE, SCHEDULES
from paraplan.question.problem import Problem

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


COMPONENT_OF_RATIO = {
    "COMPUTE": "compute",
    "DP_COMM": "dp_comm",
    "MP_COMM": "tp_comm",
    "EP_COMM": "ep_comm",
    "CP_COMM": "cp_comm",
    "PP_COMM": "pp_comm",
    "BUBBLE": "bubble",
}
"""A recalibration file's names for the time components."""


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

    def fixed(self) -> dict[str, int]:
        """The dimensions that the configuration holds at one value."""
        return {name: values[0] for name, values in self.candidates.items() if values is not None and len(values) == 1}


def limit(problem: Problem, search: SearchSpec) -> float:
    """Bytes a layout may use: the budget less what is kept back for balancing."""
    return problem.cluster.memory_budget - search.reserve_bytes


def word(dimension: str, value: int) -> int | str:
    """A dimension's value as people write it: the word where there is one."""
    return NAMES[dimension][value] if dimension in NAMES else value


def words(row: Mapping[str, int], names: Iterable[str], between: str = " ") -> str:
    """Dimensions of a layout as they are printed and read back: ``tp=8 recompute=full``."""
    return between.join(f"{name}={word(name, row[name])}" for name in names)


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))
