"""All legal layouts, joined dimension by dimension in blocks: memory stays flat, no candidate is looped over.

A block starts as a few (tp, cp, pp) degrees. Every further dimension multiplies its rows by the dimension's candidates
and every rule whose dimensions are all there removes rows at once, long before the full product is formed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from paraplan.foundation.arrays import IntArray
from paraplan.foundation.errors import InputError
from paraplan.question.layouts import CONTEXT_KINDS, RECOMPUTE, SCHEDULES, Layouts
from paraplan.question.problem import Problem
from paraplan.question.search_spec import SearchSpec, divisors
from paraplan.search.rules import Rule, rules

ORDER = (
    "dp", "cp_kind", "mbs", "mb", "vpp", "schedule", "ep", "etp", "sp", "zero_stage", "op", "recompute",
    "recompute_layers", "swap_act", "swap_os",
)  # fmt: skip
"""The order in which dimensions join (tp, cp and pp come first): those that rules cut hardest, early."""

BLOCK_ROWS = 1 << 16
"""Rows a block aims at: its columns fit the processor's cache."""

LARGEST = 4
"""Times as many a block may have where one set of degrees has them: its rows share more costs than rows of several."""


@dataclass(frozen=True, slots=True)
class Space:
    """Legal layouts, and what each rule removed."""

    layouts: Layouts
    removed: dict[str, int] = field(default_factory=dict)
    """Rule name to combinations removed, counted where the combination first breaks a rule, each standing for the
    combinations of the dimensions that had not joined yet."""


def enumerate_space(problem: Problem, search: SearchSpec) -> Space:
    """All legal layouts at once.

    Raises:
        InputError: a dimension without candidates.
    """
    removed: dict[str, int] = {}
    blocks = list(blocks_of(problem, search, removed))
    return Space(concatenate(blocks), removed)


def concatenate(blocks: list[Layouts]) -> Layouts:
    """One table of several."""
    if not blocks:
        return Layouts.of([])
    return Layouts(**{name: np.concatenate([getattr(block, name) for block in blocks]) for name in Layouts.__slots__})


def blocks_of(
    problem: Problem, search: SearchSpec, removed: dict[str, int] | None = None, block_rows: int = BLOCK_ROWS
) -> Iterator[Layouts]:
    """Legal layouts in blocks of about ``block_rows``; adds to ``removed`` what each rule removed."""
    yield from _blocks(_Joining(rules(problem, search), problem, search, removed), block_rows)


def barrier(problem: Problem, search: SearchSpec) -> dict[str, int]:
    """Of a space without layouts the rules that ended it, with how many combinations each removed there.

    They are those that the combinations which got furthest broke: of these the ones without which there would be
    layouts, if there are such.
    """
    every = rules(problem, search)
    joining = _Joining(every, problem, search)
    for _ in _blocks(joining, BLOCK_ROWS):
        pass
    ended = joining.ended[max(joining.ended)]

    def binds(name: str) -> bool:
        others = tuple(rule for rule in every if rule.name != name)
        return next(_blocks(_Joining(others, problem, search), BLOCK_ROWS), None) is not None

    binding = [name for name in ended if len(ended) > 1 and binds(name)]
    return {name: ended[name] for name in binding} or ended


def _blocks(joining: "_Joining", block_rows: int) -> Iterator[Layouts]:
    degrees = joining.degrees()
    total = len(degrees["tp"])
    # Aim at the block size by the rows that the last degrees grew to.
    start, step = 0, 1
    while start < total:
        rows = 0
        for block in joining.joined(
            {name: column[start : start + step] for name, column in degrees.items()}, block_rows
        ):
            rows += len(block)
            yield block
        start += step
        step = int(np.clip(block_rows * step / max(1, rows), 1, 4 * step))


class _Joining:
    """One enumeration."""

    def __init__(
        self, every: tuple[Rule, ...], problem: Problem, search: SearchSpec, removed: dict[str, int] | None = None
    ) -> None:
        self.problem, self.search, self.rules = problem, search, every
        self.removed = removed = {} if removed is None else removed
        for found in self.rules:
            removed.setdefault(found.name, 0)
        self.steps = self._plan()
        self.ended: dict[int, dict[str, int]] = {}
        """Position of a dimension to the combinations that each rule removed there; -1: before any joined."""

    def _remove(self, position: int, name: str, count: int) -> None:
        at = self.ended.setdefault(position, {})
        at[name] = at.get(name, 0) + count

    def _plan(self) -> list[tuple[str, list[Rule], int]]:
        """For each dimension the rules that it completes, and how many combinations the later ones stand for."""
        known, waiting = {"tp", "cp", "pp"}, list(self.rules)
        plan = []
        for position, dimension in enumerate(ORDER):
            known.add(dimension)
            ready = [found for found in waiting if found.needs <= known]
            waiting = [found for found in waiting if found not in ready]
            later = 1
            for name in ORDER[position + 1 :]:
                values = self.search.values(name)
                later *= len(values) if values is not None else automatic_sizes(self.problem).get(name, 1)
            plan.append((dimension, ready, later))
        return plan

    def degrees(self) -> dict[str, IntArray]:
        """All (tp, cp, pp) whose product divides the devices."""
        devices, model = self.problem.cluster.devices, self.problem.model
        dividing = divisors(devices)

        def candidates(name: str, most: int) -> IntArray:
            values = self.search.values(name)
            if values is not None:
                return np.array(sorted(set(values)), dtype=np.int64)
            return np.array([d for d in dividing if d <= most], dtype=np.int64)

        tp, cp, pp = np.meshgrid(
            candidates("tp", model.heads),
            candidates("cp", min(MOST_CP, self.problem.training.sequence_length)),
            candidates("pp", model.layers),
            indexing="ij",
        )
        columns = {"tp": tp.reshape(-1), "cp": cp.reshape(-1), "pp": pp.reshape(-1)}
        product = columns["tp"] * columns["cp"] * columns["pp"]
        if (product > devices).any():
            self._remove(-1, "devices", int(np.count_nonzero(product > devices)))
        return {name: column[product <= devices] for name, column in columns.items()}

    def joined(self, columns: dict[str, IntArray], block_rows: int, position: int = 0) -> Iterator[Layouts]:
        """Every legal row that starts with ``columns``, the dimensions before ``position`` joined, in blocks."""
        for i in range(position, len(self.steps)):
            dimension, ready, later = self.steps[i]
            rows, column = self._choices(columns, i, dimension)
            if len(rows) > max(LARGEST * block_rows, len(columns["tp"])) and len(columns["tp"]) > 1:
                size = max(1, LARGEST * block_rows * len(columns["tp"]) // len(rows))
                for start in range(0, len(columns["tp"]), size):
                    part = {name: old[start : start + size] for name, old in columns.items()}
                    yield from self.joined(part, block_rows, i)
                return
            grown = _Grown(columns, rows, dimension, column)
            legal = np.ones(len(rows), dtype=bool)
            for found in ready:
                keep = found.holds(grown)
                count = int(np.count_nonzero(legal & ~keep))
                if count:
                    self.removed[found.name] += count * later
                    self._remove(i, found.name, count)
                    legal &= keep
            # Columns are copied once, when it is known which rows stay; not where all stay as they are.
            if len(rows) != len(columns["tp"]) or not legal.all():
                rows, column = rows[legal], column[legal]
                if not len(rows):
                    return
                columns = {name: old[rows] for name, old in columns.items()}
            columns = {**columns, dimension: column}
        yield Layouts(**columns)

    def _choices(
        self, columns: dict[str, IntArray], position: int, dimension: str
    ) -> tuple[npt.NDArray[np.intp], IntArray]:
        """The rows of ``columns``, repeated for every value of ``dimension``, and the values."""
        values = self.search.values(dimension)
        dependent = DEPENDENT.get(dimension)
        every = np.arange(len(columns["tp"]))
        if dimension in ("dp", "mb") and values is not None:
            # They follow from the others; given values only restrict them.
            column = DEPENDENT[dimension](self.problem, columns)[0]
            keep = np.isin(column, np.array(values))
            name = f"{dimension} asked for"
            count = int((~keep).sum())
            self.removed[name] = self.removed.get(name, 0) + count
            if count:
                self._remove(position, name, count)
            return every[keep], column[keep]
        if values is None and dependent is not None:
            choices = np.stack(dependent(self.problem, columns), axis=1)
            # A choice equal to an earlier one of its row (etp = tp = 1) would list a layout twice.
            fresh = np.ones(choices.shape, dtype=bool)
            for i in range(1, choices.shape[1]):
                fresh[:, i] = ~(choices[:, :i] == choices[:, i : i + 1]).any(axis=1)
            return np.nonzero(fresh)[0], choices[fresh]
        options = values if values is not None else AUTOMATIC[dimension](self.problem)
        if not options:
            raise InputError(f"search.{dimension}: an empty list leaves nothing to try")
        return np.repeat(every, len(options)), np.tile(np.array(options, dtype=np.int64), len(every))


class _Grown(Mapping[str, IntArray]):
    """Columns repeated for a further dimension, each only when a rule reads it."""

    def __init__(
        self, columns: dict[str, IntArray], rows: npt.NDArray[np.intp], dimension: str, column: IntArray
    ) -> None:
        self.columns, self.rows = columns, rows
        self.grown = {dimension: column}

    def __getitem__(self, name: str) -> IntArray:
        if name not in self.grown:
            self.grown[name] = self.columns[name][self.rows]
        return self.grown[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self.columns, **self.grown})

    def __len__(self) -> int:
        return len({**self.columns, **self.grown})


MOST_CP = 256
"""Context parallel degrees above this are not tried automatically."""


def _dp(problem: Problem, columns: Mapping[str, IntArray]) -> list[IntArray]:
    return [problem.cluster.devices // (columns["tp"] * columns["cp"] * columns["pp"])]


def _mb(problem: Problem, columns: Mapping[str, IntArray]) -> list[IntArray]:
    return [np.maximum(problem.training.global_batch // (columns["dp"] * columns["mbs"]), 1)]


def _etp(problem: Problem, columns: Mapping[str, IntArray]) -> list[IntArray]:
    tp = columns["tp"]
    return [tp] if problem.model.experts is None else [np.ones_like(tp), tp]


def _op(problem: Problem, columns: Mapping[str, IntArray]) -> list[IntArray]:
    """The whole data-parallel group, or hybrid sharding over the replicas that share a node."""
    copies = columns["dp"] * columns["cp"]
    whole = np.where(columns["zero_stage"] == 0, 1, copies)
    in_node = np.maximum(1, problem.cluster.device.devices_per_node // columns["tp"])
    local = np.gcd(copies, in_node)
    hybrid = np.where((columns["zero_stage"] == 3) & (local > 1), local, whole)
    return [whole, hybrid]


def _schedule(problem: Problem, columns: Mapping[str, IntArray]) -> list[IntArray]:
    """Every schedule of the framework that the number of chunks allows; the rule removes the rest."""
    plain = np.zeros_like(columns["vpp"])
    return [
        plain,
        *(np.full_like(plain, SCHEDULES.index(name)) for name in problem.framework.schedules if name != "1f1b"),
    ]


def _swap_act(problem: Problem, columns: Mapping[str, IntArray]) -> list[IntArray]:
    """No swap, and a swap where the framework has it."""
    never = np.zeros_like(columns["pp"])
    if problem.framework.activation_swap == "none":
        return [never]
    if problem.framework.activation_swap == "any":
        return [never, np.ones_like(never)]
    return [never, ((columns["pp"] == 1) & (columns["recompute"] == 0)).astype(np.int64)]


DEPENDENT: Mapping[str, Callable[[Problem, Mapping[str, IntArray]], list[IntArray]]] = {
    "dp": _dp,
    "mb": _mb,
    "etp": _etp,
    "op": _op,
    "schedule": _schedule,
    "swap_act": _swap_act,
}
"""Dimensions whose automatic candidates depend on the row."""


def _recompute(problem: Problem) -> tuple[int, ...]:
    """The levels that a framework's launch options can express."""
    if problem.framework.recompute_per_chunk:
        return tuple(range(len(RECOMPUTE)))
    return tuple(RECOMPUTE.index(name) for name in ("none", "select", "full"))


AUTOMATIC: Mapping[str, Callable[[Problem], tuple[int, ...]]] = {
    "vpp": lambda problem: tuple(range(1, min(16, problem.model.layers) + 1)),
    "mbs": lambda problem: tuple(d for d in divisors(problem.training.global_batch) if d <= 16),
    "ep": lambda problem: divisors(problem.model.experts.count) if problem.model.experts else (1,),
    "sp": lambda _: (0, 1),
    "zero_stage": lambda _: (0, 1, 2, 3),
    "recompute": _recompute,
    "recompute_layers": lambda problem: (-1, *sorted({max(1, problem.model.layers // q) for q in (64, 16)})),
    "cp_kind": lambda _: tuple(range(len(CONTEXT_KINDS))),
    "swap_os": lambda _: (0, 1),
}
"""Automatic candidates that do not depend on the row."""


def automatic_sizes(problem: Problem) -> dict[str, int]:
    """How many automatic candidates each dimension has, for counting what a removed row stood for."""
    return {name: len(make(problem)) for name, make in AUTOMATIC.items()}
