"""What makes a layout legal: one named rule each, with its reason, checked on whole columns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from paraplan.foundation.arrays import IntArray
from paraplan.question.constraints import Expression, parse_expression
from paraplan.question.layouts import CONTEXT_KINDS, RECOMPUTE, SCHEDULES
from paraplan.question.problem import Problem
from paraplan.question.search_spec import SearchSpec

Columns = Mapping[str, IntArray]
Mask = npt.NDArray[np.bool_]

RING, GATHER, ULYSSES = (CONTEXT_KINDS.index(name) for name in ("ring", "allgather", "ulysses"))
INTERLEAVED = tuple(SCHEDULES.index(name) for name in ("interleaved", "interleaved-less-memory"))
V_SHAPED = tuple(SCHEDULES.index(name) for name in ("zb-v", "dualpipe-v"))
FULL = RECOMPUTE.index("full")


@dataclass(frozen=True, slots=True)
class Rule:
    """A legality rule."""

    name: str
    reason: str
    """Why the frameworks refuse what breaks it."""
    needs: frozenset[str]
    """Dimensions it reads."""
    holds: Callable[[Columns], Mask]


def rules(problem: Problem, search: SearchSpec) -> tuple[Rule, ...]:
    """Every rule that applies to ``problem``, the user's own constraints last."""
    model, training, framework = problem.model, problem.training, problem.framework
    sequence, batch, devices = training.sequence_length, training.global_batch, problem.cluster.devices
    found: list[Rule] = []

    def rule(name: str, reason: str, needs: str, holds: Callable[[Columns], Mask]) -> None:
        found.append(Rule(name, reason, frozenset(needs.split()), holds))

    rule(
        "devices", f"dp·tp·cp·pp must be the {devices} devices", "dp tp cp pp",
        lambda c: c["dp"] * c["tp"] * c["cp"] * c["pp"] == devices,
    )  # fmt: skip
    rule(
        "heads over tp", f"each tensor-parallel rank holds a whole number of the {model.heads} attention heads", "tp",
        lambda c: model.heads % c["tp"] == 0,
    )  # fmt: skip
    if model.latent is None:
        rule(
            "kv heads over tp",
            f"the {model.kv_heads} key/value heads are split evenly over tp, or each replicated evenly", "tp",
            lambda c: (model.kv_heads % c["tp"] == 0) | (c["tp"] % model.kv_heads == 0),
        )  # fmt: skip
    widths = {model.ffn_hidden, model.experts.shared_ffn_hidden if model.experts else 0} - {0}
    for width in sorted(widths):
        rule(
            "feed-forward over tp", f"the feed-forward width {width} is split evenly over tp", "tp",
            partial(_divides, width, "tp"),
        )  # fmt: skip
    rule(
        "layers over pp", f"every stage holds at least one of the {model.layers} layers", "pp",
        lambda c: c["pp"] <= model.layers,
    )  # fmt: skip
    rule(
        "sequence over cp",
        f"the {sequence} tokens are cut in 2·cp pieces (ring: two a rank evens out the causal mask) or cp pieces",
        "cp cp_kind",
        lambda c: sequence % (c["cp"] * np.where((c["cp_kind"] == RING) & (c["cp"] > 1), 2, 1)) == 0,
    )  # fmt: skip
    rule(
        "heads over cp", "Ulysses exchanges whole heads: heads and kv heads are split over tp·cp", "tp cp cp_kind",
        lambda c: (c["cp_kind"] != ULYSSES)
        | ((model.heads % (c["tp"] * c["cp"]) == 0) & (model.kv_heads % (c["tp"] * c["cp"]) == 0)),
    )  # fmt: skip
    rule(
        "one kind without cp", "the kind of context parallelism means nothing at cp = 1", "cp cp_kind",
        lambda c: (c["cp"] > 1) | (c["cp_kind"] == RING),
    )  # fmt: skip
    if model.experts is None:
        rule("ep needs experts", "a dense model has no experts to split", "ep", lambda c: c["ep"] == 1)
    else:
        count, width = model.experts.count, model.experts.ffn_hidden
        rule(
            "experts over ep", f"each expert-parallel rank holds a whole number of the {count} experts", "ep",
            lambda c: count % c["ep"] == 0,
        )  # fmt: skip
        rule(
            "experts over devices", "ep·etp divides dp·cp·tp, the ranks of one stage", "dp cp tp ep etp",
            lambda c: (c["dp"] * c["cp"] * c["tp"]) % (c["ep"] * c["etp"]) == 0,
        )  # fmt: skip
        rule(
            "expert width over etp", f"the expert width {width} is split evenly over etp", "etp",
            lambda c: width % c["etp"] == 0,
        )  # fmt: skip
    rule(
        "batch over dp and mbs", f"the global batch {batch} is dp·mbs·mb", "dp mbs mb",
        lambda c: c["dp"] * c["mbs"] * c["mb"] == batch,
    )  # fmt: skip
    rule(
        "layers over chunks", f"each of the pp·vpp chunks holds at least one of the {model.layers} layers", "pp vpp",
        lambda c: c["pp"] * c["vpp"] <= model.layers,
    )  # fmt: skip
    if not framework.uneven_stages:
        rule(
            "even stages", f"{framework.name} splits the {model.layers} layers evenly over pp·vpp", "pp vpp",
            lambda c: model.layers % (c["pp"] * c["vpp"]) == 0,
        )  # fmt: skip
    rule(
        "interleaving needs a pipeline", "chunks (vpp > 1) interleave over stages (pp > 1)", "pp vpp",
        lambda c: (c["vpp"] == 1) | (c["pp"] > 1),
    )  # fmt: skip
    rule(
        "schedule fits vpp",
        "1F1B, GPipe and zero-bubble H run one chunk a stage, V schedules two, interleaving more than one",
        "pp vpp schedule",
        lambda c: np.where(
            np.isin(c["schedule"], V_SHAPED),
            (c["vpp"] == 2) & (c["pp"] > 1),
            np.where(np.isin(c["schedule"], INTERLEAVED), c["vpp"] > 1, c["vpp"] == 1),
        ),
    )  # fmt: skip
    rule(
        "one schedule without pipeline", "without stages every schedule is the same", "pp schedule",
        lambda c: (c["pp"] > 1) | (c["schedule"] == 0),
    )  # fmt: skip
    have = tuple(i for i, name in enumerate(SCHEDULES) if name in framework.schedules)
    rule(
        "schedule of the framework",
        f"{framework.name} runs {', '.join(framework.schedules)}; training.framework_options.schedules allows others",
        "pp schedule",
        lambda c: (c["pp"] == 1) | np.isin(c["schedule"], have),
    )  # fmt: skip
    rule(
        "interleaving in groups", "interleaved 1F1B runs micro-batches in groups of pp: mb must be a multiple of pp",
        "pp mb schedule",
        lambda c: ~np.isin(c["schedule"], INTERLEAVED) | (c["mb"] % c["pp"] == 0),
    )  # fmt: skip
    rule(
        "V schedules fill both ways", "DualPipe-V and ZB-V need at least 2·pp micro-batches", "pp mb schedule",
        lambda c: ~np.isin(c["schedule"], V_SHAPED) | (c["mb"] >= 2 * c["pp"]),
    )  # fmt: skip
    rule(
        "sp needs tp",
        "sequence parallelism shards over the tp ranks: tp > 1",
        "tp sp",
        lambda c: (c["sp"] == 0) | (c["tp"] > 1),
    )
    rule(
        "sequence over sp", f"the {sequence} tokens over cp are split evenly over tp", "tp cp sp",
        lambda c: (c["sp"] == 0) | ((sequence // c["cp"]) % c["tp"] == 0),
    )  # fmt: skip
    if model.experts is not None and framework.sequence_parallel:
        rule(
            "experts need sp", "tensor and expert parallelism together require sequence parallelism", "tp ep sp",
            lambda c: (c["tp"] == 1) | (c["ep"] == 1) | (c["sp"] == 1),
        )  # fmt: skip
    rule(
        "optimizer sharding", "op divides dp·cp; op = 1 exactly at ZeRO stage 0 or where there is one replica",
        "dp cp zero_stage op",
        lambda c: ((c["dp"] * c["cp"]) % c["op"] == 0)
        & np.where(c["zero_stage"] == 0, c["op"] == 1, (c["op"] > 1) | (c["dp"] * c["cp"] == 1)),
    )  # fmt: skip
    rule(
        "sharding needs replicas", "with one replica (dp·cp = 1) no stage of ZeRO shards anything", "dp cp zero_stage",
        lambda c: (c["zero_stage"] == 0) | (c["dp"] * c["cp"] > 1),
    )  # fmt: skip
    rule(
        "ZeRO and pipeline",
        "gradients accumulate over the micro-batches of a pipeline: ZeRO 2 and 3 would reduce or gather at each",
        "pp zero_stage",
        lambda c: (c["zero_stage"] <= 1) | (c["pp"] == 1),
    )  # fmt: skip
    rule(
        "recomputed layers", "recompute_layers counts layers of a chunk, and needs a recompute level",
        "pp vpp recompute recompute_layers",
        lambda c: (c["recompute_layers"] < 0)
        | ((c["recompute"] > 0) & (c["recompute_layers"] >= 1)
           & (c["recompute_layers"] * c["pp"] * c["vpp"] < model.layers)),
    )  # fmt: skip
    rule(
        "swap needs states", "optimizer states are swapped where the optimizer is sharded", "zero_stage swap_os",
        lambda c: (c["swap_os"] == 0) | (c["zero_stage"] >= 1),
    )  # fmt: skip
    if framework.activation_swap == "none":
        rule(
            "activation swap", f"{framework.name} does not swap activations", "swap_act", lambda c: c["swap_act"] == 0,
        )  # fmt: skip
    elif framework.activation_swap == "alone":
        rule(
            "activation swap", f"{framework.name} swaps activations only without recomputation and pipeline stages",
            "pp recompute swap_act",
            lambda c: (c["swap_act"] == 0) | ((c["pp"] == 1) & (c["recompute"] == 0)),
        )  # fmt: skip
    rule(
        "swap needs a host link", f"the bandwidth between {problem.cluster.device.name} and its host is not known",
        "swap_act swap_os",
        lambda c: ((c["swap_act"] == 0) & (c["swap_os"] == 0)) | (problem.cluster.device.host_bandwidth > 0),
    )  # fmt: skip
    for text in search.constraints:
        expression = parse_expression(text, "search.constraints")
        rule(
            f"constraint {text}", "asked for by the configuration", " ".join(expression.names - {"devices"}),
            partial(_constraint, expression, devices),
        )  # fmt: skip
    return tuple(found)


def _divides(whole: int, name: str, columns: Columns) -> Mask:
    return np.asarray(whole % columns[name] == 0)


def _constraint(expression: Expression, devices: int, columns: Columns) -> Mask:
    read = {name: columns[name] for name in expression.names - {"devices"}}
    count = len(next(iter(read.values()))) if read else 1
    return expression.holds({**read, "devices": np.full(count, devices)})
