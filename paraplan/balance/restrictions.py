"""What the options of a balancing fix or forbid, as arrays and linear rows.

Axes: layer types ``T``, strategies ``R``, places ``C`` (chunks in the order of the model).
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paraplan.balance.layer_set import LayerType
from paraplan.foundation.errors import InputError
from paraplan.foundation.records import shown
from paraplan.question.balance_spec import BalanceSpec
from paraplan.simulate.pipeline_plan import Table

Counts = npt.NDArray[np.int64]

FREE = -1
"""In place of a count: the search decides."""


@dataclass(frozen=True, slots=True)
class Placing:
    """What restrictions speak of: the layers, their strategies and the places, before any cost."""

    spec: BalanceSpec
    bodies: tuple[LayerType, ...]
    """The layers to place, in the order of the model."""
    strategies: tuple[str, ...]
    usable_TR: npt.NDArray[np.bool_]
    """Whether a layer type has a strategy."""
    stages: int
    chunks: int
    stage_of: Counts
    """Stage of every place."""
    chunk_of: Counts
    """Chunk of every place."""

    @property
    def places(self) -> int:
        return self.stages * self.chunks


@dataclass(frozen=True, slots=True)
class LinearRow:
    """``lower ≤ sum of the counts at index ≤ upper``."""

    index: npt.NDArray[np.intp]
    """Into the counts (T, R, C), flattened."""
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Restrictions:
    """What an assignment must keep to besides memory and the order of the layers."""

    counted_T: npt.NDArray[np.bool_]
    """Types that offsets and recompute lists count: not the ends of the model that may move."""
    allowed_TRC: npt.NDArray[np.bool_]
    totals_C: Counts | None
    """Counted layers of every place, where they are fixed."""
    strategy_RC: Counts
    """Counted layers under each strategy on every place; :data:`FREE` where the search decides."""
    low_C: Counts
    """Layers of all types that must come up to and with each place."""
    high_C: Counts

    @staticmethod
    def of(placing: Placing) -> "Restrictions":
        """Arrays of ``placing.spec``.

        Raises:
            InputError: options that the layers, chunks or each other contradict.
        """
        counted = np.array([layer.role == "BODY" for layer in placing.bodies])
        totals = _totals(placing, counted)
        strategies = _strategies(placing, totals)
        low, high = _pinned(placing)
        return Restrictions(counted, _allowed(placing, counted), totals, strategies, low, high)

    @property
    def any(self) -> bool:
        """Whether something beyond the layers of each place is fixed or forbidden."""
        places = self.low_C.shape[0]
        free_order = (self.low_C == 0).all() and (self.high_C == self.high_C[places - 1]).all()
        same = (self.allowed_TRC == self.allowed_TRC.any(axis=2, keepdims=True)).all()
        return bool(not free_order or not same or (self.strategy_RC != FREE).any())

    def rows(self) -> Iterator[LinearRow]:
        """The linear rows; what is forbidden bounds single counts instead (:attr:`allowed_TRC`)."""
        every = np.arange(self.allowed_TRC.size).reshape(self.allowed_TRC.shape)
        places = self.allowed_TRC.shape[2]
        if self.totals_C is not None:
            for q, total in enumerate(self.totals_C):
                yield LinearRow(every[self.counted_T, :, q].reshape(-1), float(total), float(total))
        for r, q in zip(*np.nonzero(self.strategy_RC != FREE), strict=True):
            fixed = float(self.strategy_RC[r, q])
            yield LinearRow(every[self.counted_T, r, q].reshape(-1), fixed, fixed)
        everything = int(self.high_C[-1])
        for q in range(places - 1):
            if self.low_C[q] > 0 or self.high_C[q] < everything:
                index = every[:, :, : q + 1].reshape(-1)
                yield LinearRow(index, float(self.low_C[q]), float(self.high_C[q]))

    def hold(self, counts_TRC: Counts) -> bool:
        """Whether an assignment keeps to all of them."""
        if (counts_TRC[~self.allowed_TRC] != 0).any():
            return False
        flat = counts_TRC.reshape(-1)
        return all(row.lower <= flat[row.index].sum() <= row.upper for row in self.rows())


def _totals(placing: Placing, counted: npt.NDArray[np.bool_]) -> Counts | None:
    spec = placing.spec
    layers = sum(layer.count for layer, own in zip(placing.bodies, counted, strict=True) if own)
    share = layers // placing.places
    if spec.equal_chunks:
        if layers % placing.places:
            raise InputError(
                f"equal chunks: {layers} layers found, a multiple of the {placing.places} chunks is needed"
            )
        return np.full(placing.places, share, dtype=np.int64)
    if spec.offset is None:
        return None
    totals = share + _of_places(placing, spec.offset, "offset")
    if int(totals.sum()) != layers or int(totals.min()) < 0:
        raise InputError(
            f"offset: the chunks hold {int(totals.sum())} layers (least {int(totals.min())}),"
            f" all {layers} and none below 0 are needed"
        )
    return totals


def _strategies(placing: Placing, totals: Counts | None) -> Counts:
    spec, names = placing.spec, placing.strategies
    result = np.full((len(names), placing.places), FREE, dtype=np.int64)
    lists = {
        "recompute": spec.recompute,
        "select_recompute": spec.select_recompute,
        "select_comm_recompute": spec.select_comm_recompute,
    }
    given = {name: _of_places(placing, table, name) for name, table in lists.items() if table is not None}
    if not given:
        return result
    layers = sum(layer.count for layer in placing.bodies if layer.role == "BODY")
    for name, table in given.items():
        if (table < 0).any():
            raise InputError(f"{name}: {int(table.min())} found, at least 0 is needed")
        if int(table.sum()) > layers:
            raise InputError(f"{name}: {int(table.sum())} layers found, {layers} are there")
    nothing = np.zeros(placing.places, dtype=np.int64)
    full, select, comm = (given.get(name, nothing) for name in lists)
    # The last two lists count the layers of the stronger kinds too (paraplan/balance/lists.py).
    both = np.maximum(0, np.minimum(select, comm) - full)
    kinds = {
        "full": full,
        "both": both,
        "select": np.maximum(0, select - full - both),
        "comm": np.maximum(0, comm - full - both),
    }
    for name, table in kinds.items():
        if name not in names and table.any():
            counted_in = {"full": "recompute", "comm": "select_comm_recompute"}.get(name, "select_recompute")
            raise InputError(f"{counted_in}: {int(table.sum())} layers {name}, which no layer has")
    for r, name in enumerate(names):
        if name != "none":
            result[r] = kinds.get(name, nothing)
    if totals is not None and (sum(kinds.values()) > totals).any():
        q = int(np.argmax(sum(kinds.values()) - totals))
        raise InputError(
            f"{', '.join(given)}: chunk {placing.chunk_of[q]} of stage {placing.stage_of[q]} recomputes"
            f" {int(sum(table[q] for table in kinds.values()))} of its {int(totals[q])} layers"
        )
    return result


def _of_places(placing: Placing, table: Table, name: str) -> Counts:
    """A table ``[vpp][pp]`` by place."""
    if len(table) != placing.chunks or any(len(row) != placing.stages for row in table):
        raise InputError(f"{name}: a table of {placing.chunks} rows of {placing.stages} numbers is needed")
    layers = sum(layer.count for layer in placing.bodies if layer.role == "BODY")
    for x in itertools.chain.from_iterable(table):
        if abs(x) > layers:
            raise InputError(f"{name}: {shown(x)} found, {layers} layers are there")
    return np.array(table, dtype=np.int64)[placing.chunk_of, placing.stage_of]


def _allowed(placing: Placing, counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    usable = placing.usable_TR
    allowed = np.repeat(usable[:, :, None], placing.places, axis=2)
    for one in placing.spec.forbidden:
        if one.strategy not in placing.strategies:
            raise InputError(
                f"forbidden: strategy {one.strategy!r} found, one of {', '.join(placing.strategies)} is needed"
            )
        # Without a layer the bodies are meant: an end of the model has no strategy to choose.
        types = [
            t
            for t, layer in enumerate(placing.bodies)
            if (counted[t] if one.layer is None else one.layer == layer.name)
        ]
        if not types:
            raise InputError(f"forbidden: layer {one.layer!r} found, one of {_names(placing)} is needed")
        here = np.ones(placing.places, dtype=bool)
        for value, of_place in ((one.chunk, placing.chunk_of), (one.stage, placing.stage_of)):
            if value is not None:
                here &= of_place == value
        if not here.any():
            where = " of ".join(
                f"{name} {value}" for name, value in (("chunk", one.chunk), ("stage", one.stage)) if value is not None
            )
            raise InputError(
                f"forbidden: {where} found, chunks 0 to {placing.chunks - 1} and stages 0 to {placing.stages - 1}"
                " are there"
            )
        for t in types:
            allowed[t, placing.strategies.index(one.strategy), here] = False
    for t, layer in enumerate(placing.bodies):
        if not allowed[t].any():
            raise InputError(f"forbidden: nothing is left for layer {layer.name}")
    return allowed


def _pinned(placing: Placing) -> tuple[Counts, Counts]:
    """Bounds of the running sums that put each pinned layer on its place."""
    counts = [layer.count for layer in placing.bodies]
    everything = sum(counts)
    low = np.zeros(placing.places, dtype=np.int64)
    high = np.full(placing.places, everything, dtype=np.int64)
    for pin in placing.spec.pins:
        t = next((t for t, layer in enumerate(placing.bodies) if layer.name == pin.layer), None)
        if t is None:
            raise InputError(f"pins: layer {pin.layer!r} found, one of {_names(placing)} is needed")
        if not 0 <= pin.index < counts[t]:
            raise InputError(f"pins: {pin.layer} {pin.index} found, 0 to {counts[t] - 1} are there")
        here = np.flatnonzero((placing.chunk_of == pin.chunk) & (placing.stage_of == pin.stage))
        if not len(here):
            raise InputError(
                f"pins: chunk {pin.chunk} of stage {pin.stage} found, chunks 0 to {placing.chunks - 1}"
                f" and stages 0 to {placing.stages - 1} are there"
            )
        place, position = int(here[0]), sum(counts[:t]) + pin.index
        low[place:] = np.maximum(low[place:], position + 1)
        high[:place] = np.minimum(high[:place], position)
    low[-1] = everything
    if (low > high).any():
        raise InputError("pins: they contradict each other or the order of the layers")
    return low, high


def _names(placing: Placing) -> str:
    return ", ".join(layer.name for layer in placing.bodies)
