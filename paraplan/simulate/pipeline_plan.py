"""The answer of balancing and of simulation for one layout; ``to_json`` is the published contract."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Table = tuple[tuple[int, ...], ...]
"""Counts over chunks, ``[vpp][pp]``."""


@dataclass(frozen=True, slots=True)
class Bubble:
    """Idle time over work, ``pp·makespan / total work − 1``, and what it is made of (the parts add up to it)."""

    total: float
    ideal: float
    imbalance: float
    communication: float
    recompute: float


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """An assignment of layers and strategies to chunks, with what the simulator measured for it."""

    status: Literal["optimal", "feasible", "infeasible"]
    schedule: str
    makespan: float
    lower_bound: float
    gap: float
    bubble: Bubble
    layers: Table
    offset: Table
    recompute: dict[str, Table]
    """Strategy to the number of layers (of all kinds) on each chunk that use it."""
    assignment: dict[str, dict[str, Table]]
    """Layer name to strategy to counts."""
    peak_memory_mib: tuple[float, ...]
    memory_limit_mib: float
    seconds: float
    solver: str
    problem: dict[str, Any] = field(default_factory=dict)
    """What was balanced, in full (layers, stages, limits), so that the plan can be played again from its file."""
    message: str = ""
    """Why there is no assignment, and what would help; what hit a limit."""

    def to_json(self) -> dict[str, Any]:
        """The plain values of the contract (design.md, section 5); tuples become lists in JSON."""
        return asdict(self)
