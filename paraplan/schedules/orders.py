"""The order of blocks on every stage, by schedule.

A block is the forward (F), the backward (B) or, where a schedule splits the backward, the input-gradient (B) and the
weight-gradient (W) pass of one micro-batch through one chunk.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from paraplan.foundation.errors import InputError

F, B, W = 0, 1, 2
OPERATIONS = ("F", "B", "W")


class Block(NamedTuple):
    """One block of a stage."""

    operation: int
    chunk: int
    micro_batch: int


Order = list[list[Block]]
"""Per stage, its blocks in the order they run."""

SPLIT_BACKWARD = ("zb-h1", "zb-h2", "zb-v", "dualpipe-v")
"""Schedules that run the weight gradient as a block of its own."""

V_SHAPED = ("zb-v", "dualpipe-v")
"""Schedules whose second chunk runs from the last stage back to the first."""

BATCHED = ("1f1b", "interleaved")
"""Schedules in which Megatron can exchange in batches (pipeline_parallel/schedules.py has no others)."""


def model_order(name: str, stages: int, chunks: int) -> list[tuple[int, int]]:
    """Chunk and stage of every place in the order of the model."""
    return [
        (chunk, stages - 1 - s if name in V_SHAPED and chunk else s) for chunk in range(chunks) for s in range(stages)
    ]


def order(name: str, stages: int, micro_batches: int, chunks: int = 1, splits: int = 1) -> Order:
    """Blocks of every stage.

    Args:
        name: One of :data:`paraplan.question.layouts.SCHEDULES`.
        stages: Pipeline stages.
        micro_batches: Micro-batches of a step.
        chunks: Chunks of each stage (vpp).
        splits: Slices of the sequence (Seq1F1B, arXiv:2406.03488); a slice counts as a micro-batch of its own.

    Raises:
        InputError: the schedule cannot run these numbers; says why.
    """
    check_order(name, stages, micro_batches, chunks, splits)
    if name == "seq1f1b":
        return _sequence(stages, micro_batches, splits)
    return _ORDERS[name](stages, micro_batches, chunks)


def check_order(name: str, stages: int, micro_batches: int, chunks: int = 1, splits: int = 1) -> None:
    """Raise :class:`InputError` for what :func:`order` cannot do, without the work."""
    if name not in _ORDERS:
        raise InputError(f"schedule: {name!r} found, one of {', '.join(_ORDERS)} is allowed")
    for label, value in (("stages", stages), ("micro-batches", micro_batches), ("chunks", chunks), ("splits", splits)):
        if value < 1:
            raise InputError(f"{label}: {value} found, at least 1 is needed")
    problem = _refusal(name, stages, micro_batches, chunks, splits)
    if problem:
        raise InputError(f"schedule {name}: {problem}")


def _refusal(name: str, stages: int, micro_batches: int, chunks: int, splits: int) -> str:
    if name in V_SHAPED and chunks != 2:
        return f"{chunks} chunks a stage found, 2 are needed"
    if name == "dualpipe-v" and micro_batches < 2 * stages:
        return f"{micro_batches} micro-batches found, at least twice the {stages} stages are needed"
    if name == "zb-v" and micro_batches < 2 * stages:
        return f"{micro_batches} micro-batches found, at least twice the {stages} stages are needed"
    if name in ("1f1b", "gpipe", "zb-h1", "zb-h2", "seq1f1b") and chunks != 1:
        return f"{chunks} chunks a stage found, 1 is needed (interleaved runs several)"
    if splits > 1 and name != "seq1f1b":
        return "splits the sequence only in seq1f1b"
    if name == "interleaved-less-memory" and chunks > 1 and micro_batches % stages and micro_batches > stages:
        return (
            f"{micro_batches} micro-batches on {stages} stages would wait for each other in a circle;"
            " a multiple of the stages is needed"
        )
    return ""


def _plain(stages: int, micro_batches: int, _: int) -> Order:
    """1F1B (Narayanan et al., arXiv:2104.04473, section 2.2.1)."""
    return [
        _one_forward_one_backward(
            [(0, i) for i in range(micro_batches)], [(0, i) for i in range(micro_batches)], stages - s - 1
        )
        for s in range(stages)
    ]


def _gpipe(stages: int, micro_batches: int, _: int) -> Order:
    forward = [Block(F, 0, i) for i in range(micro_batches)]
    return [forward + [Block(B, 0, i) for i in reversed(range(micro_batches))] for _ in range(stages)]


def _interleaved(stages: int, micro_batches: int, chunks: int, less_memory: bool = False) -> Order:
    """Megatron's interleaved 1F1B (section 2.2.2): groups of as many micro-batches as stages go through all chunks.

    A remainder of micro-batches forms a smaller last group. The less-memory order warms up with half the distance.
    """
    if chunks == 1:
        return _plain(stages, micro_batches, 1)
    forward, backward = [], []
    for start in range(0, micro_batches, stages):
        group = range(start, min(start + stages, micro_batches))
        forward += [(chunk, i) for chunk in range(chunks) for i in group]
        backward += [(chunk, i) for chunk in reversed(range(chunks)) for i in group]
    result = []
    for s in range(stages):
        distance = stages - s - 1
        warm_up = (chunks - 1) * min(stages, micro_batches) + (distance if less_memory else 2 * distance)
        result.append(_one_forward_one_backward(forward, backward, warm_up))
    return result


def _one_forward_one_backward(
    forward: list[tuple[int, int]], backward: list[tuple[int, int]], warm_up: int
) -> list[Block]:
    warm_up = min(warm_up, len(forward))
    blocks = [Block(F, *one) for one in forward[:warm_up]]
    done = 0
    for one in forward[warm_up:]:
        blocks += [Block(F, *one), Block(B, *backward[done])]
        done += 1
    return blocks + [Block(B, *one) for one in backward[done:]]


def _sequence(stages: int, micro_batches: int, splits: int) -> Order:
    """Seq1F1B: slices forward in order, backward from the last slice of a micro-batch to the first."""
    forward = [(0, i) for i in range(micro_batches * splits)]
    backward = [(0, i * splits + j) for i in range(micro_batches) for j in reversed(range(splits))]
    return [_one_forward_one_backward(forward, backward, stages - s - 1 + splits - 1) for s in range(stages)]


def _zero_bubble(stages: int, micro_batches: int, eager: bool) -> Order:
    """ZB-H1 and ZB-H2 (Qi et al., arXiv:2401.10241, section 2): weight gradients wait and fill the drain.

    H1 warms up as 1F1B and lets stage s hold back s weight gradients, H2 twice as much of both.
    """
    result = []
    for s in range(stages):
        distance = stages - s - 1
        warm_up = min(micro_batches, 2 * distance if eager else distance)
        held = 2 * s if eager else s
        blocks = [Block(F, 0, i) for i in range(warm_up)]
        weights = 0
        for i in range(micro_batches):
            draining = warm_up + i >= micro_batches
            if not draining:
                blocks.append(Block(F, 0, warm_up + i))
            blocks.append(Block(B, 0, i))
            # In the drain every backward but the last stage's leaves a gap, that a weight gradient fills.
            if i - weights >= held or (draining and distance > 0):
                blocks.append(Block(W, 0, weights))
                weights += 1
        blocks += [Block(W, 0, i) for i in range(weights, micro_batches)]
        result.append(blocks)
    return result


class _Builder:
    """Appends the next micro-batch of an operation on a chunk."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.done = [[0, 0], [0, 0], [0, 0]]
        self.held: list[tuple[int, int]] = []

    def run(self, operation: int, chunk: int) -> None:
        self.blocks.append(Block(operation, chunk, self.done[operation][chunk]))
        self.done[operation][chunk] += 1

    def backward(self, chunk: int, hold: bool = False) -> None:
        """Both gradients, or the input's with the weight's held back."""
        self.run(B, chunk)
        if hold:
            self.held.append((chunk, self.done[B][chunk] - 1))
        else:
            self.blocks.append(Block(W, chunk, self.done[B][chunk] - 1))

    def weight(self) -> None:
        """The oldest weight gradient held back."""
        self.blocks.append(Block(W, *self.held.pop(0)))


def _zb_v(stages: int, micro_batches: int, _: int) -> Order:
    """ZB-V (Qi et al., arXiv:2405.15362, section 4): two chunks, the second back from the last stage to the first."""
    return [_zb_v_stage(stages, micro_batches, s) for s in range(stages)]


def _zb_v_stage(stages: int, micro_batches: int, s: int) -> list[Block]:
    build = _Builder()
    forward, weight = build.done[F], build.done[W]
    for _ in range(min(2 * (stages - s) - 1, micro_batches)):
        build.run(F, 0)
    for _ in range(s):
        build.run(F, 1)
        build.run(F, 0)
    for _ in range(stages - s):
        for operation in (F, B, W):
            build.run(operation, 1)
    while forward[1] < forward[0] or forward[0] < micro_batches:
        if forward[0] < micro_batches:
            build.run(F, 0)
        for operation, chunk in ((B, 0), (W, 0), (F, 1), (B, 1), (W, 1)):
            build.run(operation, chunk)
    for _ in range(s):
        build.run(B, 0)
        build.run(B, 1)
    for _ in range(stages - s):
        build.run(B, 0)
        build.run(W, 0)
    for chunk in (1, 0):
        while weight[chunk] < build.done[B][chunk]:
            build.run(W, chunk)
    return build.blocks


def _dualpipe_v(stages: int, micro_batches: int, _: int) -> Order:
    """DualPipe-V (DeepSeek-AI): both chunks of the V in turn; a forward beside a backward runs after it here."""
    return [_dualpipe_v_stage(stages, micro_batches, s) for s in range(stages)]


def _dualpipe_v_stage(stages: int, micro_batches: int, s: int) -> list[Block]:
    build, rest = _Builder(), stages - s - 1
    for _ in range(2 * rest):
        build.run(F, 0)
    for _ in range(s + 1):
        build.run(F, 0)
        build.run(F, 1)
    for _ in range(rest):
        build.backward(1, hold=True)
        build.weight()
        build.run(F, 1)
    for _ in range(micro_batches - 2 * stages + s + 1):
        build.run(F, 0)
        build.backward(1)
        build.run(F, 1)
        build.backward(0)
    for _ in range(rest):
        build.backward(1)
        build.run(F, 1)
        build.backward(0)
    for i in range(s + 1):
        build.backward(1, hold=2 * i >= s + 1)
        build.backward(0, hold=2 * i + 1 >= s + 1)
    for _ in range(rest):
        if build.held:
            build.weight()
        build.backward(0, hold=True)
    while build.held:
        build.weight()
    return build.blocks


_ORDERS: Mapping[str, Callable[[int, int, int], Order]] = {
    "1f1b": _plain,
    "gpipe": _gpipe,
    "interleaved": _interleaved,
    "interleaved-less-memory": lambda p, m, v: _interleaved(p, m, v, less_memory=True),
    "zb-h1": lambda p, m, _: _zero_bubble(p, m, eager=False),
    "zb-h2": lambda p, m, _: _zero_bubble(p, m, eager=True),
    "zb-v": _zb_v,
    "dualpipe-v": _dualpipe_v,
    "seq1f1b": _plain,
}
