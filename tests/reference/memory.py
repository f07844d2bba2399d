"""The memory model one layout at a time, in plain Python, over every stage and every layer."""

import math

from paraplan.operators import parameters
from paraplan.question.layouts import RECOMPUTE, SCHEDULES
from paraplan.question.problem import Problem

DROPPED = {
    "core_attention": {"scores": 1.0},
    "norm": {"norm_output": 1.0, "norm_copies": 1.0},
    "activation": {"activation": 1.0},
    "feed_forward_activation": {"activation": 1.0},
    "feed_forward": {"activation": 1.0, "feed_forward": 1.0},
    "latent_up": {"latent_up": 1.0},
    "attention": {"query_key_value": 1.0, "latent_up": 1.0, "attention_output": 1.0, "scores": 1.0},
    "every_second_product": {"query_key_value": 0.5, "feed_forward": 0.5, "residual": 0.25},
}


def stage_layers(problem: Problem, row: dict[str, int]) -> list[dict[str, int]]:
    """Layers of each kind on every stage: chunks in order, the rest one each to the last chunks but one."""
    model, chunks = problem.model, row["pp"] * row["vpp"]
    share, rest = divmod(model.layers, chunks)
    kinds = [group.kind for group in model.groups for _ in range(group.count)]
    stages = [{"dense": 0, "moe": 0} for _ in range(row["pp"])]
    next_layer = 0
    for chunk in range(chunks):
        size = share + (1 if chunks - 1 - rest <= chunk <= chunks - 2 else 0)
        for kind in kinds[next_layer : next_layer + size]:
            stages[chunk % row["pp"]][kind] += 1
        next_layer += size
    assert next_layer == model.layers, "every layer has a chunk"
    return stages


def states(problem: Problem, row: dict[str, int], dense: float, expert: float) -> tuple[float, float]:
    """Bytes held for good, and 16-bit bytes that ZeRO-3 gathers, of parameters on one rank before data sharding."""
    framework, training, zero = problem.framework, problem.training, row["zero_stage"]
    copies = row["dp"] * row["cp"]
    expert_copies = max(1.0, copies * row["tp"] / (row["ep"] * row["etp"]))
    weight = framework.parameter_bytes + (1 if training.precision.startswith(("fp8", "mxfp8", "nvfp4")) else 0)
    gradient = framework.gradient_bytes if training.gradient_bytes is None else training.gradient_bytes
    moments = {"sgd": 1 / 3, "muon": 2 / 3}.get(training.optimizer, 1.0)
    total = 0.0
    for each, stage in ((weight, 3), (gradient, 2), (framework.optimizer_bytes * moments, 1)):
        if stage == 1 and row["swap_os"]:
            continue
        shard = row["op"] if zero >= stage else 1
        total += each * (dense / shard + expert / (min(shard, expert_copies) if zero >= stage else 1))
    return total, 2.0 * (dense + expert) if zero == 3 else 0.0


def kind_states(problem: Problem, row: dict[str, int], kind: str) -> tuple[float, float]:
    model, tp = problem.model, row["tp"]
    if kind == "embedding":
        return states(problem, row, parameters.embedding(model) / tp, 0.0)
    if kind == "head":
        tied = model.vocab * model.hidden if model.tied_embeddings and row["pp"] > 1 else 0
        return states(problem, row, (parameters.head(model) + tied) / tp, 0.0)
    own = model.groups[-1].kind if kind == "mtp" else kind
    layer = parameters.layer(model, own)  # type: ignore[arg-type]
    experts = layer.experts / (row["ep"] * row["etp"])
    if kind == "mtp":
        return states(problem, row, (parameters.mtp_layer(model) - layer.experts) / tp, experts)
    replicated = layer.attention_replicated + layer.norms + layer.router
    return states(problem, row, (layer.attention + layer.feed_forward) / tp + replicated, experts)


def layer_parts(problem: Problem, row: dict[str, int], kind: str) -> dict[str, float]:
    """Bytes one micro-batch leaves in one layer, by part."""
    model, training, tp = problem.model, problem.training, row["tp"]
    tokens = row["mbs"] * training.sequence_length / row["cp"]
    shard = tokens / tp if row["sp"] and tp > 1 else tokens
    boundary = 2.0 * model.hidden * shard
    heads = model.heads / tp
    low = training.precision.startswith(("fp8", "mxfp8", "nvfp4")) and problem.framework.low_precision_inputs
    kept = 2.0 if not low else 9 / 16 if training.precision == "nvfp4" else 1.0
    second = kept if kind == "dense" else 2.0
    parts = {"residual": 2 * boundary, "norm_output": (kept + second) * boundary / 2}
    copy = kept if low else 0.0
    if not training.fused_norm:
        parts["norm_copies"] = 6 * boundary
    if model.latent is None:
        parts["query_key_value"] = 2.0 * tokens * model.head_dim * (heads + 2 * max(model.kv_heads / tp, 1.0))
        parts["attention_output"] = tokens * heads * ((2.0 + copy) * model.head_dim + 4)
    else:
        latent = model.latent
        query_key = latent.nope_head_dim + latent.rope_head_dim
        parts["query_key_value"] = (
            2.0 * shard * (2 * latent.query_rank + 2 * latent.key_value_rank + latent.rope_head_dim)
        )
        parts["latent_up"] = 2.0 * tokens * heads * (3 * query_key + latent.nope_head_dim + latent.value_head_dim)
        parts["attention_output"] = tokens * heads * ((2.0 + copy) * latent.value_head_dim + 4)
    if training.attention_kernel == "unfused":
        scores = row["mbs"] * training.sequence_length**2 / row["cp"] * heads
        parts["scores"] = scores * (5.0 if model.attention_dropout else 2.0)
    if model.attention_dropout:
        parts["dropout"] = boundary
    gates = 2 if model.gated else 1
    if kind == "dense":
        parts["feed_forward"] = 2.0 * tokens * gates * model.ffn_hidden / tp
        parts["activation"] = kept * tokens * model.ffn_hidden / tp
        return parts
    experts = model.experts
    assert experts is not None
    own = tokens / tp
    load = experts.capacity_factor or problem.training.expert_imbalance
    arriving = own * experts.topk * row["etp"] * load
    parts["router"] = own * experts.count * 8.0
    parts["dispatched"] = arriving * kept * model.hidden
    parts["combined"] = own * experts.topk * 2.0 * model.hidden
    shared = tokens * experts.shared_ffn_hidden / tp
    parts["feed_forward"] = arriving * 2.0 * gates * experts.ffn_hidden / row["etp"] + 2.0 * gates * shared
    parts["activation"] = kept * (arriving * experts.ffn_hidden / row["etp"] + shared)
    return parts


def saved_by(parts: dict[str, float], modules: tuple[str, ...]) -> float:
    total = 0.0
    for name in parts:
        total += parts[name] * max([DROPPED.get(module, {}).get(name, 0.0) for module in modules], default=0.0)
    return total


def kept_and_transient(problem: Problem, row: dict[str, int], kind: str, level: str) -> tuple[float, float]:
    """Bytes one micro-batch keeps in a layer under a recompute level, and those while its backward runs."""
    model, framework = problem.model, problem.framework
    tokens = row["mbs"] * problem.training.sequence_length / row["cp"]
    boundary = 2.0 * model.hidden * (tokens / row["tp"] if row["sp"] and row["tp"] > 1 else tokens)
    if kind == "embedding":
        return (boundary / 2.0 if model.attention_dropout else 0.0), boundary
    if kind == "head":
        each = 6.0 if framework.fused_loss else 12.0
        if framework.vocab_parallel_loss:
            loss = tokens * model.vocab * each / row["tp"]
        else:
            loss = tokens * model.vocab * (24.0 if row["tp"] > 1 else each)
        return 2 * boundary, loss
    if kind == "mtp":
        kept, transient = kept_and_transient(problem, row, model.groups[-1].kind, level)
        return kept + 3 * boundary, transient
    parts = layer_parts(problem, row, kind)
    total = sum(parts.values())
    select, comm = saved_by(parts, framework.select_modules), saved_by(parts, framework.comm_modules)
    dropped = {
        "none": 0.0, "select": select, "comm": comm, "both": min(select + comm, total - boundary),
        "full": total - boundary,
    }[level]  # fmt: skip
    return total - dropped, 2 * boundary + parts["feed_forward"] + dropped


def chunks_in_flight(row: dict[str, int], stage: int) -> float:
    """Chunks of micro-batches that a stage holds at its peak."""
    pp, vpp, mb = row["pp"], row["vpp"], row["mb"]
    schedule = SCHEDULES[row["schedule"]]
    held = {
        "1f1b": (pp - stage) * vpp,
        "interleaved": (vpp + 1) * pp - 2 * stage - 1 if vpp > 1 else pp - stage,
        "interleaved-less-memory": vpp * pp - stage,
        "gpipe": mb * vpp,
        "zb-h1": pp * vpp,
        "zb-h2": (2 * pp - 1) * vpp,
        "zb-v": pp * vpp,
        "dualpipe-v": pp * vpp + 1,
        "seq1f1b": ((pp + 1) / 2 - stage / 2) * vpp,
    }[schedule]
    return min(held, mb * vpp)


def peak(problem: Problem, row: dict[str, int]) -> float:
    """Peak bytes on the heaviest stage."""
    model, training, framework = problem.model, problem.training, problem.framework
    efficiency = problem.cluster.device.efficiency
    growth = 1 + efficiency.fragmentation + framework.fragmentation
    level = RECOMPUTE[row["recompute"]]
    hidden = 2.0 * training.sequence_length * model.hidden * row["mbs"] / row["cp"]
    sharded = row["sp"] == 1 and row["tp"] > 1
    buffers = hidden if sharded else 0.0
    if row["pp"] > 1:
        buffers += 2 * hidden / (row["tp"] if sharded else 1)
    heaviest = -math.inf
    for stage, held in enumerate(stage_layers(problem, row)):
        first, last = stage == 0, stage == row["pp"] - 1
        there = [("embedding", int(first)), ("dense", held["dense"]), ("moe", held["moe"]), ("head", int(last))]
        if last and model.mtp_layers:
            there.append(("mtp", model.mtp_layers))
        static = kept = transient = gathered = swapping = 0.0
        for kind, count in there:
            if not count:
                continue
            each, whole = kind_states(problem, row, kind)
            static += count * each
            if kind != "mtp":
                gathered = max(gathered, whole)
            each, own = kept_and_transient(problem, row, kind, level)
            if kind in ("dense", "moe"):
                recomputing = count if row["recompute_layers"] < 0 else min(count, row["recompute_layers"] * row["vpp"])
                plain, _ = kept_and_transient(problem, row, kind, "none")
                if row["swap_act"]:
                    swapping = max(swapping, each if row["recompute_layers"] < 0 else plain)
                else:
                    kept += recomputing * each + (count - recomputing) * plain
            else:
                kept += count * each
            if kind in ("dense", "moe", "head"):
                transient = max(transient, own)
        in_use = kept / row["vpp"] * chunks_in_flight(row, stage) + transient + 3 * gathered + 2 * swapping + buffers
        heaviest = max(heaviest, static + growth * in_use)
    return heaviest + efficiency.overhead_bytes + framework.reserved_bytes
