"""The pipeline as a fixed graph: for a given schedule only the durations change, so it is built once, timed often."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paraplan.foundation.arrays import Array
from paraplan.foundation.compilation import compiled
from paraplan.foundation.errors import InputError
from paraplan.schedules.orders import BATCHED, OPERATIONS, V_SHAPED, B, Block, F, Order, W, order

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PipelineGraph:
    """``n`` blocks in an order in which each comes after those it waits for.

    Durations are per class: class ``(o·chunks + c)·stages + s`` is operation ``o`` of chunk ``c`` on stage ``s``.
    """

    name: str
    stages: int
    chunks: int
    micro_batches: int
    splits: int
    blocks: tuple[tuple[int, Block], ...]
    """Stage and block."""
    klass: Index
    before: Index
    """The block before on the same stage, -1: none."""
    source: Index
    """The block that gives the input, -1: none."""
    crosses: npt.NDArray[np.float64]
    """1 where the input comes from another stage."""
    meets: Index
    """With batched exchanges: the blocks after which the receivers of the work before take part, (n, 2), -1: none."""

    @property
    def classes(self) -> int:
        return len(OPERATIONS) * self.chunks * self.stages

    def class_of(self, operation: int, chunk: int, stage: int) -> int:
        return (operation * self.chunks + chunk) * self.stages + stage

    def ends(self, durations: Array, p2p: float = 0.0) -> Array:
        """End of every block, shape (n,), for durations per class and seconds per send."""
        ends: Array = _ends(self.klass, self.before, self.source, self.crosses, self.meets, durations, p2p)
        return ends

    def makespan(self, durations: Array, p2p: float = 0.0) -> float:
        """From the first start to the last end."""
        return float(self.ends(durations, p2p).max())

    def critical_path(self, durations: Array, p2p: float = 0.0) -> tuple[Index, float]:
        """How often each class, and how many sends, lie on the longest path: the makespan as a linear row."""
        counts, sends = _critical(
            self.klass, self.before, self.source, self.crosses, self.meets, durations, p2p, self.classes
        )
        return counts, float(sends)


def build_graph(
    name: str, stages: int, micro_batches: int, chunks: int = 1, splits: int = 1, *, batched: bool = False
) -> PipelineGraph:
    """The graph of a named schedule.

    Args:
        name: One of :data:`paraplan.question.layouts.SCHEDULES`.
        stages: Pipeline stages.
        micro_batches: Micro-batches of a step.
        chunks: Chunks of each stage.
        splits: Slices of the sequence.
        batched: Stages exchange in batches and wait for each other, as Megatron's without overlap: a stage goes on
            only when the receiver of what it computed has taken part. Otherwise sends overlap computation.

    Raises:
        InputError: the schedule cannot run these numbers.
    """
    if batched and name not in BATCHED:
        raise InputError(f"batched: schedule {name!r} found, exchanges in batches need {' or '.join(BATCHED)}")
    orders = order(name, stages, micro_batches, chunks, splits)
    return graph_of(name, orders, micro_batches * splits, chunks, splits, batched=batched)


def graph_of(
    name: str, orders: Order, micro_batches: int, chunks: int, splits: int = 1, *, batched: bool = False
) -> PipelineGraph:
    """The graph of any order of blocks.

    Raises:
        InputError: blocks that wait for each other in a circle, named; or a block without the one it needs.
    """
    stages = len(orders)
    position: dict[tuple[int, int, int, int], int] = {}
    flat: list[tuple[int, Block]] = []
    before: list[int] = []
    for s, blocks in enumerate(orders):
        for i, block in enumerate(blocks):
            position[(s, *block)] = len(flat)
            before.append(len(flat) - 1 if i else -1)
            flat.append((s, block))
    sources, crossing = [], []
    for s, block in flat:
        origin = _origin(name, stages, chunks, s, block)
        if origin is None:
            sources.append(-1)
            crossing.append(0.0)
            continue
        if origin not in position:
            raise InputError(f"schedule {name}: {_label(s, block)} waits for a block that is not there")
        sources.append(position[origin])
        crossing.append(float(origin[0] != s))
    meets = _meetings(name, flat, before, sources, crossing) if batched else [(-1, -1)] * len(flat)
    sequence = _topological(name, flat, before, sources, meets)
    rank = np.empty(len(flat), dtype=np.int64)
    rank[sequence] = np.arange(len(flat))

    def renumbered(values: list[int]) -> Index:
        return np.array([rank[values[i]] if values[i] >= 0 else -1 for i in sequence], dtype=np.int64)

    klass = [(block.operation * chunks + block.chunk) * stages + s for s, block in flat]
    return PipelineGraph(
        name,
        stages,
        chunks,
        micro_batches,
        splits,
        tuple(flat[i] for i in sequence),
        np.array([klass[i] for i in sequence], dtype=np.int64),
        renumbered(before),
        renumbered(sources),
        np.array([crossing[i] for i in sequence]),
        np.stack([renumbered([pair[k] for pair in meets]) for k in (0, 1)], axis=1),
    )


def _meetings(
    name: str, flat: list[tuple[int, Block]], before: list[int], sources: list[int], crossing: list[float]
) -> list[tuple[int, int]]:
    """For each block that follows an exchange, the last blocks that its partners ran before they took part in it.

    Megatron exchanges after every block in 1F1B, and after a forward and a backward together in the steady phase of
    the interleaved schedule (pipeline_parallel/schedules.py).
    """
    pairs = name.startswith("interleaved")
    follows_in_group = [
        pairs and b >= 0 and flat[b][1].operation == F and flat[i][1].operation == B for i, b in enumerate(before)
    ]
    # The last block of the exchange group before each block's own group.
    ahead = [before[before[i]] if follows_in_group[i] else before[i] for i in range(len(flat))]
    receiver = {source: i for i, source in enumerate(sources) if source >= 0 and crossing[i]}
    meets = []
    for i, b in enumerate(before):
        if b < 0 or follows_in_group[i]:
            meets.append((-1, -1))
            continue
        senders = [b, before[b]] if follows_in_group[b] else [b]
        partners = [ahead[receiver[sender]] for sender in senders if sender in receiver]
        padded = [*partners, -1, -1]
        meets.append((padded[0], padded[1]))
    return meets


def _origin(name: str, stages: int, chunks: int, s: int, block: Block) -> tuple[int, int, int, int] | None:
    """Stage and block that a block takes its input from."""
    operation, chunk, micro_batch = block
    if operation == W:
        return (s, B, chunk, micro_batch)
    place = _place(name, stages, s, chunk)
    if operation == F:
        if place == 0:
            return None
        return (*_at(name, stages, place - 1, F), micro_batch)
    if place == stages * chunks - 1:
        return (s, F, chunk, micro_batch)
    return (*_at(name, stages, place + 1, B), micro_batch)


def _place(name: str, stages: int, s: int, chunk: int) -> int:
    """Where a chunk stands in the order of the model."""
    return 2 * stages - 1 - s if name in V_SHAPED and chunk == 1 else chunk * stages + s


def _at(name: str, stages: int, place: int, operation: int) -> tuple[int, int, int]:
    chunk, s = divmod(place, stages)
    return (stages - 1 - s if name in V_SHAPED and chunk == 1 else s, operation, chunk)


NAMED_BLOCKS = 5
"""Blocks of a circle that an error names."""


def _topological(
    name: str, flat: list[tuple[int, Block]], before: list[int], sources: list[int], meets: list[tuple[int, int]]
) -> list[int]:
    needs = [(b, source, *meet) for b, source, meet in zip(before, sources, meets, strict=True)]
    waiting = [sum(needed >= 0 for needed in one) for one in needs]
    followers: list[list[int]] = [[] for _ in flat]
    for i, one in enumerate(needs):
        for needed in one:
            if needed >= 0:
                followers[needed].append(i)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    sequence = []
    while ready:
        i = ready.pop()
        sequence.append(i)
        for follower in followers[i]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    if len(sequence) < len(flat):
        stuck = next(i for i, count in enumerate(waiting) if count > 0)
        circle = _circle(stuck, waiting, needs, flat)
        told = [*circle[:NAMED_BLOCKS], f"{len(circle) - NAMED_BLOCKS} more"] if len(circle) > NAMED_BLOCKS else circle
        advice = "; a multiple of the stages as micro-batches runs" if name.startswith("interleaved") else ""
        raise InputError(f"schedule {name}: deadlock: {' waits for '.join(told)}{advice}")
    return sequence


def _circle(
    start: int, waiting: list[int], needs: Sequence[tuple[int, ...]], flat: list[tuple[int, Block]]
) -> list[str]:
    """The labels of blocks that wait for each other."""
    path: list[int] = []
    i = start
    while i not in path:
        path.append(i)
        i = next(n for n in needs[i] if n >= 0 and waiting[n] > 0)
    return [_label(*flat[n]) for n in [*path[path.index(i) :], i]]


def _label(s: int, block: Block) -> str:
    return f"{OPERATIONS[block.operation]}{block.micro_batch} of chunk {block.chunk} on stage {s}"


@compiled
def _ends(
    klass: Index, before: Index, source: Index, crosses: Array, meets: Index, durations: Array, p2p: float
) -> Array:
    ends = np.empty(len(klass))
    for i in range(len(klass)):
        start = 0.0
        if before[i] >= 0:
            start = ends[before[i]]
        if source[i] >= 0:
            ready = ends[source[i]] + crosses[i] * p2p
            if ready > start:
                start = ready
        for k in range(2):
            if meets[i, k] >= 0:
                start = max(start, max(ends[meets[i, k]], ends[before[i]]) + p2p)
        ends[i] = start + durations[klass[i]]
    return ends


@compiled
def _critical(
    klass: Index,
    before: Index,
    source: Index,
    crosses: Array,
    meets: Index,
    durations: Array,
    p2p: float,
    classes: int,
) -> tuple[Index, float]:
    ends = _ends(klass, before, source, crosses, meets, durations, p2p)
    counts = np.zeros(classes, dtype=np.int64)
    sends = 0.0
    i = int(np.argmax(ends))
    while i >= 0:
        counts[klass[i]] += 1
        following, latest, used = before[i], 0.0, 0.0
        if before[i] >= 0:
            latest = ends[before[i]]
        if source[i] >= 0 and ends[source[i]] + crosses[i] * p2p >= latest:
            following, latest, used = source[i], ends[source[i]] + crosses[i] * p2p, crosses[i]
        for k in range(2):
            if meets[i, k] >= 0:
                met = max(ends[meets[i, k]], ends[before[i]])
                if met + p2p > latest:
                    latest, used = met + p2p, 1.0
                    following = meets[i, k] if ends[meets[i, k]] >= ends[before[i]] else before[i]
        sends += used
        i = following
    return counts, sends
