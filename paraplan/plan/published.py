"""``plan.json`` read back: what others build on, checked once, errors as one line.

Keys that nobody reads are left alone, so that a plan written by a later version still reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from paraplan.foundation.errors import InputError
from paraplan.foundation.records import Count, build
from paraplan.question.training import Precision
from paraplan.schedules.orders import check_order

Positive = Annotated[Count, Field(ge=1)]
Layers = Annotated[Count, Field(le=1_000_000)]
"""The bound is far beyond any model: exports write every layer down."""
CountTable = Annotated[tuple[Annotated[tuple[Layers, ...], Field(min_length=1)], ...], Field(min_length=1)]
"""``[vpp][pp]``."""


@dataclass(frozen=True, slots=True)
class PublishedLayout:
    """``parallel`` of a plan, as far as others build on it."""

    dp: Positive
    tp: Positive
    cp: Positive
    ep: Positive
    etp: Positive
    pp: Positive
    vpp: Positive
    mbs: Positive
    mb: Positive
    sp: Annotated[Count, Field(le=1)]
    zero_stage: Annotated[Count, Field(le=3)]
    op: Positive


@dataclass(frozen=True, slots=True)
class PublishedLayer:
    """One entry of ``layers_description``."""

    name: str
    nb_layer: Layers


@dataclass(frozen=True, slots=True)
class PublishedLayers:
    """``layers`` of a plan's ``problem``."""

    layers_description: tuple[PublishedLayer, ...]


@dataclass(frozen=True, slots=True)
class PublishedProblem:
    """``problem`` of a plan; what only playing it needs is checked where it is played."""

    layers: PublishedLayers


@dataclass(frozen=True, slots=True)
class PublishedPipeline:
    """``pipeline`` of a plan."""

    schedule: str
    layers: CountTable
    recompute: Annotated[Mapping[str, CountTable], Field(min_length=1)]
    """By strategy; the tables add up to ``layers``."""
    assignment: Mapping[str, Annotated[Mapping[str, CountTable], Field(min_length=1)]] = field(default_factory=dict)
    """By layer and strategy; beside the counted layers the ends of the model that may move."""
    problem: PublishedProblem | None = None

    def described(self, name: str) -> int:
        """How many layers of a type the model has."""
        described = self.problem.layers.layers_description if self.problem else ()
        return sum(layer.nb_layer for layer in described if layer.name == name)

    def placed(self, name: str) -> list[list[int]]:
        """Where the layers of a type are, whatever their strategy."""
        return _sum(self.assignment[name])


@dataclass(frozen=True, slots=True)
class PublishedPlan:
    """One of the ranked plans."""

    parallel: PublishedLayout
    pipeline: PublishedPipeline


@dataclass(frozen=True, slots=True)
class PublishedTraining:
    """``training``, as far as others build on it."""

    global_batch: Positive
    sequence_length: Positive
    precision: Precision


@dataclass(frozen=True, slots=True)
class PublishedAnswer:
    """A ``plan.json`` that was read."""

    plans: Annotated[tuple[PublishedPlan, ...], Field(min_length=1)]
    training: PublishedTraining


def read_plan_json(document: Mapping[str, Any], rank: int, where: str) -> tuple[PublishedPlan, PublishedTraining]:
    """The plan of a rank in a ``plan.json``, and the training it is for.

    Raises:
        InputError: a value of a wrong type, tables that contradict each other, or no plan of that rank.
    """
    answer = build(PublishedAnswer, {key: document[key] for key in ("plans", "training") if key in document}, where)
    for i, plan in enumerate(answer.plans):
        _check(plan, f"{where}: plans.{i}.pipeline.")
    if not 1 <= rank <= len(answer.plans):
        raise InputError(f"{where}: --rank: {rank} found, 1 to {len(answer.plans)} is allowed")
    return answer.plans[rank - 1], answer.training


def _check(plan: PublishedPlan, prefix: str) -> None:
    """Refuse a plan whose schedule cannot run, and tables that contradict the layout or each other."""
    layout, pipeline = plan.parallel, plan.pipeline
    try:
        check_order(pipeline.schedule, layout.pp, layout.mb, layout.vpp)
    except InputError as error:
        raise InputError(f"{prefix}{error}") from None
    tables = {"layers": pipeline.layers} | {f"recompute.{name}": table for name, table in pipeline.recompute.items()}
    for layer, strategies in pipeline.assignment.items():
        tables |= {f"assignment.{layer}.{name}": table for name, table in strategies.items()}
    for name, table in tables.items():
        for row in table:
            if len(table) != layout.vpp or len(row) != layout.pp:
                raise InputError(
                    f"{prefix}{name}: {len(table)} rows, one with {len(row)} numbers, found;"
                    f" {layout.vpp} (vpp) rows of {layout.pp} (pp) are needed"
                )
    treated = _sum(pipeline.recompute)
    for v, row in enumerate(pipeline.layers):
        for s, count in enumerate(row):
            if treated[v][s] != count:
                raise InputError(
                    f"{prefix}recompute: {treated[v][s]} layers found on chunk {v} of stage {s}, {count} are needed"
                )
    for name, needed in {"embedding": 1, "mtp": pipeline.described("mtp"), "head": 1}.items():
        if name in pipeline.assignment and (found := sum(map(sum, pipeline.placed(name)))) != needed:
            raise InputError(f"{prefix}assignment.{name}: {found} layers found, {needed} needed")


def _sum(tables: Mapping[str, CountTable]) -> list[list[int]]:
    return [[sum(counts) for counts in zip(*rows, strict=True)] for rows in zip(*tables.values(), strict=True)]
