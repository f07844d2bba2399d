"""Bytes of one layer of each kind: what it holds for good, and what one micro-batch leaves for the backward pass.

Activation counts follow Korthikanti et al. (arXiv:2205.05198, section 4) operator by operator, with the kernels used
today: flash attention keeps no scores, a fused norm keeps no fp32 copies, SwiGLU keeps both halves of its input.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paraplan.foundation.arrays import Array, Combinations, combine
from paraplan.operators import parameters
from paraplan.operators.layer_kinds import KINDS
from paraplan.question.layouts import RECOMPUTE, Layouts
from paraplan.question.models.spec import LayerKind
from paraplan.question.problem import Problem
from paraplan.question.training import below_16_bits

HALF = 2.0
"""Bytes of an activation element."""


@dataclass(frozen=True, slots=True)
class States:
    """Persistent bytes on one rank for one layer of a kind, arrays of shape (U,)."""

    parameters: Array
    gradients: Array
    optimizer: Array
    gathered: Array
    """16-bit bytes of the whole layer on one rank, that ZeRO-3 gathers for a while; 0 below stage 3."""

    @property
    def total(self) -> Array:
        return self.parameters + self.gradients + self.optimizer


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes of one micro-batch in one layer of a kind, arrays of shape (U,)."""

    kept: tuple[Array, ...]
    """Kept until its backward, under each of :data:`paraplan.question.layouts.RECOMPUTE`."""
    transient: tuple[Array, ...]
    """Held while the layer's own backward runs: what recomputation brings back, and gradients on their way."""


def layer_states(problem: Problem, layouts: Layouts) -> tuple[Combinations, dict[str, States]]:
    """Parameters, gradients and optimizer states of every kind of layer."""
    found = combine(
        layouts.tp, layouts.ep, layouts.etp, layouts.dp, layouts.cp, layouts.zero_stage, layouts.op, layouts.swap_os
    )
    rows = layouts.take(found.rows_U)
    model = problem.model
    tp = rows.tp.astype(np.float64)
    kinds: dict[str, States] = {}
    for group in model.groups:
        layer = parameters.layer(model, group.kind)
        dense = (layer.attention + layer.feed_forward) / tp + (layer.attention_replicated + layer.norms + layer.router)
        kinds[group.kind] = _states(problem, rows, dense, layer.experts / (rows.ep * rows.etp))
    none = np.zeros(len(rows))
    kinds["embedding"] = _states(problem, rows, parameters.embedding(model) / tp, none)
    # A tied head holds its own copy of the table where it is on another stage than the embedding.
    head = parameters.head(model) / tp + np.where(
        model.tied_embeddings & (rows.pp > 1), model.vocab * model.hidden / tp, 0.0
    )
    kinds["head"] = _states(problem, rows, head, none)
    if model.mtp_layers:
        layer = parameters.layer(model, model.groups[-1].kind)
        rest = parameters.mtp_layer(model) - layer.experts
        kinds["mtp"] = _states(problem, rows, rest / tp, layer.experts / (rows.ep * rows.etp))
    return found, {kind: kinds[kind] for kind in KINDS if kind in kinds}


def _states(problem: Problem, rows: Layouts, dense: Array, expert: Array) -> States:
    framework, training = problem.framework, problem.training
    copies = (rows.dp * rows.cp).astype(np.float64)
    expert_copies = np.maximum(1.0, copies * rows.tp / (rows.ep * rows.etp))
    op = rows.op.astype(np.float64)
    expert_op = np.minimum(op, expert_copies)

    def shared(bytes_each: float, from_stage: int) -> Array:
        over = np.where(rows.zero_stage >= from_stage, op, 1.0)
        expert_over = np.where(rows.zero_stage >= from_stage, expert_op, 1.0)
        return bytes_each * (dense / over + expert / expert_over)

    gradient = framework.gradient_bytes if training.gradient_bytes is None else training.gradient_bytes
    weight = float(framework.parameter_bytes)
    if below_16_bits(training.precision):
        weight += LOW_PRECISION_COPY
    moments = {"sgd": 1 / 3, "muon": 2 / 3}.get(training.optimizer, 1.0)
    optimizer = shared(framework.optimizer_bytes * moments, 1)
    return States(
        shared(weight, 3),
        shared(gradient, 2),
        np.where(rows.swap_os == 1, 0.0, optimizer),
        np.where(rows.zero_stage == 3, HALF * (dense + expert), 0.0),
    )


DROPPED_BY: Mapping[str, Mapping[str, float]] = {
    "core_attention": {"scores": 1.0},
    "norm": {"norm_output": 1.0, "norm_copies": 1.0},
    "activation": {"activation": 1.0},
    "feed_forward_activation": {"activation": 1.0},
    "feed_forward": {"activation": 1.0, "feed_forward": 1.0},
    "latent_up": {"latent_up": 1.0},
    "attention": {"query_key_value": 1.0, "latent_up": 1.0, "attention_output": 1.0, "scores": 1.0},
    # Selective activation checkpointing by operator keeps every second product's output and the attention's.
    "every_second_product": {"query_key_value": 0.5, "feed_forward": 0.5, "residual": 0.25},
}
"""Module that a recompute level names, to the share of each part of a layer's activations that it drops."""

INPUT_BYTES = {"nvfp4": 0.5625}
"""Bytes of an element kept below 16 bits, where it is not one: 4 bits and an 8-bit scale for every 16."""

LOW_PRECISION_COPY = 1.0
"""Bytes a parameter that the cached 8-bit weight adds below 16 bits."""


def layer_activations(problem: Problem, layouts: Layouts) -> tuple[Combinations, dict[str, Activations]]:
    """What one micro-batch leaves in every kind of layer."""
    found = combine(layouts.tp, layouts.cp, layouts.ep, layouts.etp, layouts.sp, layouts.mbs)
    counting = _Counting(problem, layouts.take(found.rows_U))
    model = problem.model
    kinds: dict[str, Activations] = {"embedding": counting.embedding(), "head": counting.head()}
    for group in model.groups:
        kinds[group.kind] = counting.layer(group.kind)
    if model.mtp_layers:
        last = kinds[model.groups[-1].kind]
        join = counting.boundary * 3
        kinds["mtp"] = Activations(tuple(kept + join for kept in last.kept), last.transient)
    return found, {kind: kinds[kind] for kind in KINDS if kind in kinds}


class _Counting:
    """Activation bytes over ``U`` combinations."""

    def __init__(self, problem: Problem, rows: Layouts) -> None:
        self.problem = problem
        model, training = problem.model, problem.training
        self.tp, self.etp = rows.tp.astype(np.float64), rows.etp.astype(np.float64)
        self.tokens = rows.mbs * (training.sequence_length / rows.cp)
        self.scores = rows.mbs * float(training.sequence_length) ** 2 / rows.cp * (model.heads / self.tp)
        self.norm_tokens = np.where((rows.sp == 1) & (rows.tp > 1), self.tokens / self.tp, self.tokens)
        self.boundary = HALF * model.hidden * self.norm_tokens
        """Bytes of the hidden states between layers."""
        self.zero = np.zeros(len(rows))
        low = problem.framework.low_precision_inputs
        self.input_bytes = (
            INPUT_BYTES.get(training.precision, 1.0) if low and below_16_bits(training.precision) else HALF
        )
        """Bytes of an element of a linear layer's input, kept for its weight gradient."""

    def layer(self, kind: LayerKind) -> Activations:
        parts = self._attention_parts() | self._feed_forward_parts(kind)
        # The second norm's output also goes into the router, which stays in 16 bits.
        second = self.input_bytes if kind == "dense" else HALF
        parts["norm_output"] = self.boundary * (self.input_bytes + second) / HALF
        total = sum(parts.values(), self.zero)
        dropped = {
            "none": self.zero,
            "select": self._of_modules(parts, self.problem.framework.select_modules),
            "comm": self._of_modules(parts, self.problem.framework.comm_modules),
        }
        dropped["both"] = np.minimum(dropped["select"] + dropped["comm"], total - self.boundary)
        dropped["full"] = total - self.boundary
        # Gradients on their way: of the hidden states, and of the feed-forward's widest tensor.
        gradients = 2 * self.boundary + parts["feed_forward"]
        return Activations(
            tuple(total - dropped[level] for level in RECOMPUTE),
            tuple(gradients + dropped[level] for level in RECOMPUTE),
        )

    def _of_modules(self, parts: dict[str, Array], modules: tuple[str, ...]) -> Array:
        """Bytes that dropping ``modules`` saves; where several name a part, the largest share counts."""
        shares: dict[str, float] = {}
        for module in modules:
            for name, share in DROPPED_BY.get(module, {}).items():
                shares[name] = max(share, shares.get(name, 0.0))
        return sum((share * parts[name] for name, share in sorted(shares.items()) if name in parts), self.zero)

    def _attention_parts(self) -> dict[str, Array]:
        model, training = self.problem.model, self.problem.training
        heads = model.heads / self.tp
        parts = {
            # Inputs of both norms, the residual stream; their outputs follow.
            "residual": 2 * self.boundary,
        }
        if not training.fused_norm:
            # fp32 copy of the input and normalised 16-bit output, for each of the two norms.
            parts["norm_copies"] = 2 * 3 * self.boundary
        if model.latent is None:
            key_value = np.maximum(model.kv_heads / self.tp, 1.0)
            parts["query_key_value"] = HALF * self.tokens * model.head_dim * (heads + 2 * key_value)
            value_dim = model.head_dim
        else:
            latent = model.latent
            query_key = latent.nope_head_dim + latent.rope_head_dim
            ranks = 2 * (latent.query_rank + latent.key_value_rank) + latent.rope_head_dim
            expanded = heads * (query_key + latent.nope_head_dim + latent.value_head_dim)
            # Rotary embedding and the shared rotary key make full copies of queries and keys.
            copies = heads * query_key * 2
            parts["query_key_value"] = HALF * self.norm_tokens * ranks
            parts["latent_up"] = HALF * self.tokens * (expanded + copies)
            value_dim = latent.value_head_dim
        # The kernel's own backward needs its 16-bit output and a statistic a row, the projection its input.
        copy = self.input_bytes if self.input_bytes < HALF else 0.0
        parts["attention_output"] = self.tokens * heads * ((HALF + copy) * value_dim + 4)
        if training.attention_kernel == "unfused":
            # Softmax output, and with dropout its mask and result.
            parts["scores"] = self.scores * (5.0 if model.attention_dropout else 2.0)
        if model.attention_dropout:
            parts["dropout"] = 2 * self.boundary / HALF
        return parts

    def _feed_forward_parts(self, kind: LayerKind) -> dict[str, Array]:
        model = self.problem.model
        if kind == "dense":
            return self._dense(model.ffn_hidden)
        experts = model.experts
        assert experts is not None, "expert layers need experts"
        own = self.tokens / self.tp
        arriving = own * experts.topk * self.etp * self.problem.expert_load
        gates = 2 if model.gated else 1
        width = experts.ffn_hidden / self.etp
        parts = {
            "router": own * experts.count * 8.0,
            "dispatched": arriving * self.input_bytes * model.hidden,
            "combined": own * experts.topk * HALF * model.hidden,
            "feed_forward": arriving * HALF * gates * width,
            "activation": arriving * self.input_bytes * width,
        }
        if experts.shared_ffn_hidden:
            shared = self._dense(experts.shared_ffn_hidden)
            parts = {name: parts.get(name, self.zero) + shared.get(name, self.zero) for name in {**parts, **shared}}
        return parts

    def _dense(self, width: int) -> dict[str, Array]:
        gates = 2 if self.problem.model.gated else 1
        each = self.tokens * width / self.tp
        return {"feed_forward": gates * HALF * each, "activation": self.input_bytes * each}

    def embedding(self) -> Activations:
        kept = self.zero if not self.problem.model.attention_dropout else self.boundary / HALF
        return Activations((kept,) * len(RECOMPUTE), (self.boundary,) * len(RECOMPUTE))

    def head(self) -> Activations:
        """The final norm's input and output are kept; the logits live only while the loss is computed."""
        framework = self.problem.framework
        logits = self.tokens * self.problem.model.vocab
        each = FUSED_LOSS_BYTES if framework.fused_loss else PLAIN_LOSS_BYTES
        gathered = np.where(self.tp > 1, GATHERED_LOSS_BYTES, each)
        loss = logits * (each / self.tp if framework.vocab_parallel_loss else gathered)
        return Activations((2 * self.boundary,) * len(RECOMPUTE), (loss,) * len(RECOMPUTE))


FUSED_LOSS_BYTES = 6.0
"""16-bit logits and one fp32 copy in which softmax and gradient are computed in place."""

PLAIN_LOSS_BYTES = 12.0
"""16-bit logits, their fp32 copy, log-probabilities in fp32, and the 16-bit gradient."""

GATHERED_LOSS_BYTES = 24.0
"""Logits gathered over tp: the 16-bit parts and their concatenation (4), fp32 logits (4), log-probabilities (4),
their gradient and its product with the probabilities (8), the 16-bit gradient and its scattered copy (4)."""
