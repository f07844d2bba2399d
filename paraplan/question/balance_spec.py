"""How balancing is to be done."""

from dataclasses import dataclass
from typing import Literal

from paraplan.simulate.pipeline_plan import Table

Schedule = Literal[
    "auto", "1f1b", "interleaved", "interleaved-less-memory", "gpipe", "zb-h1", "zb-h2", "zb-v", "seq1f1b", "dualpipe-v"
]
Format = Literal["mindformers", "any"]


@dataclass(frozen=True, slots=True)
class Pin:
    """A layer that must be on one chunk."""

    layer: str
    """Name of its type."""
    index: int
    """Which of that type, from 0."""
    stage: int
    chunk: int = 0

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (a field to nobody)


@dataclass(frozen=True, slots=True)
class Forbidden:
    """A strategy that some layers must not use; no layer means every body layer, no stage or chunk all of them."""

    strategy: str
    layer: str | None = None
    stage: int | None = None
    chunk: int | None = None

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012


@dataclass(frozen=True, slots=True)
class BalanceSpec:
    """Options of one balancing."""

    time_limit_s: float = 60.0
    """Seconds for one layout."""
    effort: int = 1
    """0: heuristics and a quick bound; 1: search until the gap is small; 2: use the time limit to prove optimality."""
    solver: str = "highs"
    """A PuLP solver: highs, cbc, gurobi, … """
    schedule: Schedule = "auto"
    """``auto`` tries every schedule that suits the chunks and that the runtime has."""
    runtime: tuple[str, ...] | None = None
    """Schedules that the runtime has; None: all."""
    strategies: tuple[str, ...] = ("none", "select", "comm", "both", "full")
    """Strategies that layers may use."""
    equal_chunks: bool = False
    """Every chunk gets the even share (for frameworks that cannot place uneven layers)."""
    offset: Table | None = None
    """Fixes the layers of every chunk, ``[vpp][pp]``; only strategies are searched."""
    recompute: Table | None = None
    """Fixes the fully recomputed layers of every chunk, ``[vpp][pp]``; with either of the next two given, and with the
    others as zeros, all strategies are fixed and only the layers of every chunk are searched."""
    select_recompute: Table | None = None
    """The same as MindFormers counts it: layers with selective recompute, both and full among them."""
    select_comm_recompute: Table | None = None
    """The same for communication recompute."""
    pins: tuple[Pin, ...] = ()
    forbidden: tuple[Forbidden, ...] = ()
    movable: tuple[str, ...] = ()
    """Ends of the model (embedding, prediction layers, head) that may be on any chunk, the order kept."""
    format: Format = "mindformers"
    """Whose lists the answer must be expressible in: MindFormers cannot mix select and comm on one chunk."""
    seed: int = 0
    """Of the search; the same seed gives the same answer unless a time limit is hit."""
