"""Seconds of one micro-batch through one layer of each kind, computed once per combination of what it depends on."""

from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from paraplan.foundation.arrays import Array, Combinations, combine
from paraplan.operators import collectives as communication
from paraplan.operators.kernels import Kernels, Product
from paraplan.operators.layer_kinds import KINDS
from paraplan.question.clusters.placement import Placement, place
from paraplan.question.layouts import CONTEXT_KINDS, RECOMPUTE, SCHEDULES, Layouts
from paraplan.question.models.spec import LayerKind
from paraplan.question.problem import Problem


@dataclass(frozen=True, slots=True)
class Part:
    """Seconds of one pass, by where they go; arrays of shape (U,). Communication counts only what nothing hides."""

    compute: Array
    tp: Array
    cp: Array
    ep: Array

    @property
    def total(self) -> Array:
        return self.compute + self.tp + self.cp + self.ep


@dataclass(frozen=True, slots=True)
class KindCost:
    """One kind of layer; recompute is a :class:`Part` for each of :data:`paraplan.question.layouts.RECOMPUTE`."""

    forward: Part
    backward: Part
    recompute: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Every kind's cost over ``U`` combinations; kinds that the model lacks are None."""

    combinations: Combinations
    kinds: dict[str, KindCost]
    boundary_bytes_U: Array
    """Bytes that one micro-batch sends from stage to stage."""
    paired_U: npt.NDArray[np.bool_]
    """Whether DualPipe runs forward and backward passes of two micro-batches side by side."""


def layer_costs(problem: Problem, layouts: Layouts) -> LayerCosts:
    """Cost of every kind of layer of ``problem`` under every layout."""
    combinations = combine(
        layouts.tp, layouts.cp, layouts.ep, layouts.etp, layouts.sp, layouts.mbs, layouts.cp_kind,
        (layouts.schedule == DUALPIPE).astype(np.int64),
    )  # fmt: skip
    return _Costing(problem, layouts.take(combinations.rows_U), combinations).costs()


class _Costing:
    """The dimensions as floats, and the pieces that several kinds share."""

    def __init__(self, problem: Problem, layouts: Layouts, combinations: Combinations) -> None:
        self.problem = problem
        self.combinations = combinations
        self.layouts = layouts
        self.kernels = Kernels(
            problem.cluster.device,
            problem.training.precision,
            4.0 if problem.framework.fused_gradient_accumulation else 2.0 + 2.0 * problem.framework.gradient_bytes,
        )
        self.tp, self.cp, self.ep, self.etp, self.mbs = (
            column.astype(np.float64) for column in (layouts.tp, layouts.cp, layouts.ep, layouts.etp, layouts.mbs)
        )
        self.sp = layouts.sp.astype(bool) & (layouts.tp > 1)
        self.paired = layouts.schedule == DUALPIPE
        self.zero = np.zeros(len(layouts))
        training, model = problem.training, problem.model
        self.tokens = self.mbs * training.sequence_length / self.cp
        self.shard_tokens = np.where(self.sp, self.tokens / self.tp, self.tokens)
        self.hidden_bytes = 2.0 * model.hidden * self.tokens
        self.launch = problem.cluster.device.efficiency.launch_seconds
        group = self._group(layouts.tp, np.ones_like(layouts.tp))
        self.gather = np.where(layouts.tp > 1, self._all_gather(group, self.hidden_bytes), 0.0)

    def costs(self) -> LayerCosts:
        model = self.problem.model
        kinds: dict[str, KindCost] = {"embedding": self._embedding(), "head": self._head()}
        for kind in ("dense", "moe"):
            if any(group.kind == kind for group in model.groups):
                kinds[kind] = self._layer(kind)
        if model.mtp_layers:
            kinds["mtp"] = self._prediction(kinds[model.groups[-1].kind], kinds["head"])
        # Each tensor rank sends its share; without sequence parallelism the next stage gathers them over the fast
        # links (Narayanan et al., arXiv:2104.04473, section 4.1).
        boundary = self.hidden_bytes / self.tp
        return LayerCosts(
            self.combinations, {kind: kinds[kind] for kind in KINDS if kind in kinds}, boundary, self.paired
        )

    # --- transformer layers -------------------------------------------------------------------------------------

    def _layer(self, kind: LayerKind) -> KindCost:
        model, framework, training = self.problem.model, self.problem.framework, self.problem.training
        projections, column = self._projections()
        core_forward, core_backward = self._core()
        if kind == "dense":
            feed, feed_column, feed_forward_bytes = self._dense_feed_forward(model.ffn_hidden, self.tokens)
            feed_tp = self._block_communication(feed_column)
            exchange = inner = self.zero
        else:
            feed, feed_forward_bytes, feed_tp, exchange, inner = self._experts()
        norm_bytes = self.shard_tokens * model.hidden * (8 if training.fused_norm else UNFUSED_NORM_BYTES)
        residual_bytes = self.shard_tokens * model.hidden * (12 + (2 if model.attention_dropout else 0))
        rotary = 0.0 if model.learned_positions else 4.0
        position_bytes = self.tokens * (self._heads() + self._kv_heads()) * model.head_dim * rotary
        passes = framework.pointwise_passes
        bytes_seconds = passes * self.kernels.bytes_seconds(
            norm_bytes + residual_bytes + position_bytes + feed_forward_bytes
        )
        bytes_launch = 14 * self.launch
        attention_tp = self._block_communication(column)
        ring = self._context(core_forward, core_backward)
        linear = reduce(Product.__add__, [*projections, feed])
        compute = linear.forward + core_forward + bytes_seconds + bytes_launch
        forward = Part(
            compute, attention_tp[0] + feed_tp[0], ring[0], inner + self._exposed_exchange(exchange, compute)
        )
        compute = linear.backward + core_backward + 1.8 * bytes_seconds + 1.5 * bytes_launch
        backward = Part(
            compute, attention_tp[1] + feed_tp[1], ring[1], inner + self._exposed_exchange(exchange, compute)
        )
        norms = passes * self.kernels.bytes_seconds(norm_bytes)
        activation = passes * self.kernels.bytes_seconds(feed_forward_bytes)
        parts = {
            "core_attention": core_forward,
            "norm": norms,
            "activation": activation,
            "feed_forward_activation": activation,
            "feed_forward": feed.forward,
            "every_second_product": linear.forward / 2,
            "latent_up": projections[0].forward + projections[1].forward if model.latent else self.zero,
            "attention": reduce(Product.__add__, projections).forward + core_forward,
        }
        select = sum((parts[module] for module in framework.select_modules if module in parts), self.zero)
        # What the comm level drops is the gathered input of each block: one gather for attention, one for the rest.
        comm_compute = sum((parts[module] for module in framework.comm_modules if module in parts), self.zero)
        comm_tp = np.where(self.sp, 2 * self.gather * (1 - framework.overlap_tensor), 0.0)
        nothing = self.zero
        recompute = {
            "none": Part(nothing, nothing, nothing, nothing),
            "select": Part(select, nothing, nothing, nothing),
            "comm": Part(comm_compute, comm_tp, nothing, nothing),
            "both": Part(select + comm_compute, comm_tp, nothing, nothing),
            "full": forward,
        }
        return KindCost(forward, backward, tuple(recompute[level] for level in RECOMPUTE))

    def _heads(self) -> Array:
        return self.problem.model.heads / self.tp

    def _kv_heads(self) -> Array:
        """Key/value heads on one rank; fewer heads than ranks are replicated."""
        return np.maximum(self.problem.model.kv_heads / self.tp, 1.0)

    def _projections(self) -> tuple[list[Product], Product]:
        """Attention's linear layers, and the one whose backward hides tensor-parallel communication."""
        model, linear = self.problem.model, self.kernels.linear
        heads = self._heads()
        if model.latent is None:
            column = linear(self.tokens, model.hidden, (heads + 2 * self._kv_heads()) * model.head_dim)
            return [column, linear(self.tokens, heads * model.head_dim, model.hidden)], column
        latent = model.latent
        query_key = latent.nope_head_dim + latent.rope_head_dim
        down = self.shard_tokens
        key_value = linear(self.tokens, latent.key_value_rank, heads * (latent.nope_head_dim + latent.value_head_dim))
        output = linear(self.tokens, heads * latent.value_head_dim, model.hidden)
        key_value_down = linear(down, model.hidden, latent.key_value_rank + latent.rope_head_dim)
        if latent.query_rank:
            query = linear(self.tokens, latent.query_rank, heads * query_key)
            query_down = linear(down, model.hidden, latent.query_rank)
            return [query, key_value, output, query_down, key_value_down], query
        query = linear(self.tokens, model.hidden, heads * query_key)
        return [query, key_value, output, key_value_down], query

    def _core(self) -> tuple[Array, Array]:
        model, training = self.problem.model, self.problem.training
        sequence = float(training.sequence_length)
        value_dim = model.latent.value_head_dim if model.latent else model.head_dim
        # The causal mask leaves half the square; a window leaves a band.
        area = sequence * sequence / 2
        kernel = self.problem.framework.attention_kernel if training.attention_kernel == "flash" else "unfused"
        # Without tiling the whole square is computed and masked.
        if model.sliding_window and kernel != "unfused":
            band = min(area, sequence * model.sliding_window)
            area = (1 - model.sliding_share) * area + model.sliding_share * band
        pairs = self.mbs * self._heads() / self.cp
        flops = 2 * pairs * area * (model.head_dim + value_dim)
        return self.kernels.attention(flops, pairs * sequence**2, kernel, model.head_dim, sequence)

    def _context(self, core_forward: Array, core_backward: Array) -> tuple[Array, Array]:
        """Exposed seconds of context parallelism: keys and values around the ring, gathered, or heads exchanged."""
        model, overlap = self.problem.model, self.problem.framework.overlap_context
        if not (self.layouts.cp > 1).any():
            return self.zero, self.zero
        value_dim = model.latent.value_head_dim if model.latent else model.head_dim
        key_value_heads = self._heads() if model.latent else self._kv_heads()
        key_value = 2 * self.tokens * key_value_heads * (model.head_dim + value_dim)
        group = self._group(self.layouts.cp, self.layouts.tp)
        cluster = self.problem.cluster
        ring = communication.point_to_point(cluster, group, key_value) * (self.cp - 1)
        gathered = communication.all_gather(cluster, group, key_value * self.cp)
        query = 2 * self.tokens * self._heads() * model.head_dim
        exchanged = communication.all_to_all(cluster, group, 2 * query + key_value)
        kind = self.layouts.cp_kind
        forward = np.choose(kind, [ring, gathered, exchanged])
        hidden = np.where(kind == CONTEXT_KINDS.index("ring"), overlap, 0.0)

        def exposed(seconds: Array, core: Array) -> Array:
            shown = seconds * (1 - hidden) + np.maximum(0.0, seconds * hidden - core)
            return np.where(self.layouts.cp > 1, shown, 0.0)

        # Backward: keys and values again, and their gradients; an exchange only once more.
        backward = np.where(kind == CONTEXT_KINDS.index("ulysses"), forward, 2 * forward)
        return exposed(forward, core_forward), exposed(backward, core_backward)

    def _dense_feed_forward(self, width: int, tokens: Array) -> tuple[Product, Product, Array]:
        """Both linear layers, the first of them, and the bytes of the activation function."""
        model, linear = self.problem.model, self.kernels.linear
        gates = 2 if model.gated else 1
        first = linear(tokens, model.hidden, gates * width / self.tp)
        second = linear(tokens, width / self.tp, model.hidden)
        return first + second, first, tokens * width / self.tp * (6 if model.gated else 4)

    def _experts(self) -> tuple[Product, Array, tuple[Array, Array], Array, Array]:
        """Router, routed and shared experts: products, bytes, exposed tp communication; a pass's exchanges over ep and
        gathering over etp."""
        model, framework, linear = self.problem.model, self.problem.framework, self.kernels.linear
        experts = model.experts
        assert experts is not None, "expert layers need experts"
        gates = 2 if model.gated else 1
        own_tokens = self.tokens / self.tp
        routed = own_tokens * experts.topk
        # The busiest rank's, which the others wait for.
        arriving = routed * self.etp * self.problem.expert_load
        local = experts.count / self.ep
        each = arriving / local
        products = (
            linear(each, model.hidden, gates * experts.ffn_hidden / self.etp, local)
            + linear(each, experts.ffn_hidden / self.etp, model.hidden, local)
            + linear(own_tokens, model.hidden, experts.count, wide=True)
        )
        moved = arriving * experts.ffn_hidden / self.etp * (6 if model.gated else 4)
        # Permute, unpermute and weigh: each copy is read and written three times on its way out and back.
        moved = moved + arriving * model.hidden * 12
        shared_tp = (self.zero, self.zero)
        if experts.shared_ffn_hidden:
            shared, column, shared_bytes = self._dense_feed_forward(experts.shared_ffn_hidden, self.tokens)
            products, moved = products + shared, moved + shared_bytes
            shared_tp = self._block_communication(column)
        launches = self._expert_launches(local)
        products = Product(products.forward + launches, products.input_gradient + launches, products.weight_gradient)
        cluster = self.problem.cluster
        exchange_group = self._group(self.layouts.ep, self.layouts.etp)
        exchange = np.where(
            self.layouts.ep > 1,
            communication.all_to_all(
                cluster,
                exchange_group,
                routed * self.problem.expert_load * model.hidden * 2.0,
                experts.topk if framework.expert_dispatch == "once-a-node" else None,
            ),
            0.0,
        )
        inner_group = self._group(self.layouts.etp, np.ones_like(self.layouts.etp))
        inner = np.where(self.layouts.etp > 1, self._all_gather(inner_group, arriving * model.hidden * 2.0), 0.0)
        return products, moved, shared_tp, 2 * exchange, 2 * inner

    def _exposed_exchange(self, exchange: Array, compute: Array) -> Array:
        """What shows of a pass's exchanges: the framework's share, or what DualPipe cannot run behind the computation
        of another micro-batch (arXiv:2412.19437, section 3.2.1)."""
        shown: Array = np.where(
            self.paired, np.maximum(0.0, exchange - compute), exchange * (1 - self.problem.framework.overlap_expert)
        )
        return shown

    def _expert_launches(self, local: Array) -> Array | float:
        """Seconds that launching an expert layer's kernels shows each way, beside its products'.

        Experts with a capacity have equal shapes, which one kernel takes; else they are launched one by one.
        """
        model, framework = self.problem.model, self.problem.framework
        if framework.expert_graphs and self.problem.cluster.device.grouped_on_device:
            return 0.0
        equal = model.experts is not None and model.experts.capacity_factor is not None
        return (framework.expert_launches + (0.0 if equal else framework.expert_launches_each) * local) * self.launch

    def _block_communication(self, column: Product) -> tuple[Array, Array]:
        """Exposed tensor-parallel seconds of one block, forward and backward.

        With sequence parallelism the forward gathers its input and scatters its output (Korthikanti et al.,
        arXiv:2205.05198, section 4.2.2); the backward gathers the output's gradient, and behind the column-parallel
        layer's two products gathers the input again and scatters its gradient. Without it the forward reduces once
        and the backward's reduction runs behind the weight gradient (Megatron-LM, tensor_parallel/layers.py).
        """
        shown = 1 - self.problem.framework.overlap_tensor
        gather = self.gather
        forward = 2 * gather * shown
        if not self.problem.framework.overlap_tensor_backward:
            return forward, np.where(self.sp, 3.0, 2.0) * gather * shown
        with_sp = (
            gather * shown
            + np.maximum(0.0, gather - column.input_gradient)
            + np.maximum(0.0, gather - column.weight_gradient)
        )
        without = np.maximum(0.0, 2 * gather - column.weight_gradient)
        return forward, np.where(self.sp, with_sp, without)

    # --- the ends of the model ----------------------------------------------------------------------------------

    def _embedding(self) -> KindCost:
        hidden = self.problem.model.hidden
        forward = self.kernels.bytes_seconds(self.shard_tokens * hidden * 6) + 2 * self.launch
        backward = self.kernels.bytes_seconds(self.shard_tokens * hidden * 8) + 2 * self.launch
        return self._end(Part(forward, self.gather, self.zero, self.zero), backward, self.gather)

    def _head(self) -> KindCost:
        model = self.problem.model
        # Frameworks pad the vocabulary to whole tiles on every rank.
        vocab = np.ceil(model.vocab / self.tp / 128) * 128
        projection = self.kernels.linear(self.tokens, model.hidden, vocab, wide=True)
        # Logits written, read and turned to fp32 probabilities; without a fused loss a second fp32 copy.
        loss = self.kernels.bytes_seconds(self.tokens * vocab * (10 if self.problem.framework.fused_loss else 18))
        forward = projection.forward + loss
        return self._end(
            Part(forward, self.gather, self.zero, self.zero), projection.backward + 0.7 * loss, self.gather
        )

    def _prediction(self, layer: KindCost, head: KindCost) -> KindCost:
        """A multi-token-prediction layer: a layer, the joining projection, and the head once more."""
        hidden = self.problem.model.hidden
        join = self.kernels.linear(self.shard_tokens, 2 * hidden, hidden)

        def with_head(part: Part, head_part: Part, extra: Array) -> Part:
            return Part(part.compute + head_part.compute + extra, part.tp + head_part.tp, part.cp, part.ep)

        return KindCost(
            with_head(layer.forward, head.forward, join.forward),
            with_head(layer.backward, head.backward, join.backward),
            layer.recompute,
        )

    def _end(self, forward: Part, backward: Array, backward_tp: Array) -> KindCost:
        nothing = Part(self.zero, self.zero, self.zero, self.zero)
        return KindCost(forward, Part(backward, backward_tp, self.zero, self.zero), (nothing,) * len(RECOMPUTE))

    def _group(self, degree: np.ndarray, stride: np.ndarray) -> Placement:
        return place(self.problem.cluster.levels, degree, stride)

    def _all_gather(self, group: Placement, size: Array) -> Array:
        return communication.all_gather(self.problem.cluster, group, size)


DUALPIPE = SCHEDULES.index("dualpipe-v")

UNFUSED_NORM_BYTES = 72
"""Bytes an element that two norms written as separate operators move: to fp32 (6), square (8), mean (4), scale (8),
back to 16 bits (6), weigh (4); a fused kernel reads and writes 4."""
