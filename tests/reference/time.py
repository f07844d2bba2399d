"""The time model one layout at a time, in plain Python, over every stage."""

import math

from paraplan.operators import parameters
from paraplan.question.clusters.spec import ClusterSpec
from paraplan.question.layouts import CONTEXT_KINDS, RECOMPUTE, SCHEDULES
from paraplan.question.problem import Problem
from tests.reference.memory import kept_and_transient, stage_layers

TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.8), (64, 128, 0.8), (64, 64, 0.6))
FILL = {
    "1f1b": 1.0, "gpipe": 1.0, "interleaved": 1.0, "interleaved-less-memory": 1.0, "seq1f1b": 0.5, "zb-h1": 1 / 3,
    "zb-h2": 0.0, "zb-v": 0.0, "dualpipe-v": 1 / 6,
}  # fmt: skip


# --- links ------------------------------------------------------------------------------------------------------


def group_inside(cluster: ClusterSpec, degree: float, stride: float) -> list[float]:
    """Ranks of a group in one block of each level."""
    inside: list[float] = []
    for i, level in enumerate(cluster.levels):
        extent = degree * stride
        if i == len(cluster.levels) - 1 or level.span % extent == 0:
            inside.append(degree)
        elif extent <= level.span:
            inside.append(min(math.ceil(degree / 2), degree))
        else:
            inside.append(min(max(1, level.span // stride), degree))
    return inside


def links(cluster: ClusterSpec) -> list[tuple[float, float]]:
    """Reached bandwidth and latency of every level."""
    efficiency = cluster.device.efficiency
    shares = [efficiency.intra_link] + [efficiency.inter_link] * (len(cluster.levels) - 1)
    return [(level.bandwidth * share, level.latency) for level, share in zip(cluster.levels, shares, strict=True)]


def ring(cluster: ClusterSpec, inside: list[float], degree: float, size: float) -> tuple[float, float]:
    """Seconds of the bytes around a ring, and of one message around it."""
    reached = links(cluster)
    seconds = size * (degree - 1) / degree / reached[0][0]
    hops, blocks = 0.0, degree
    for i, (bandwidth, latency) in enumerate(reached):
        if i:
            parts = math.ceil(inside[i] / inside[i - 1])
            seconds = max(seconds, size * (parts - 1) / parts / (inside[i - 1] * bandwidth))
        outer = math.ceil(degree / inside[i])
        hops += (blocks - outer) * latency
        blocks = outer
    return seconds, hops


def all_gather(cluster: ClusterSpec, degree: float, stride: float, size: float, pieces: float = 1.0) -> float:
    if degree <= 1:
        return 0.0
    seconds, hops = ring(cluster, group_inside(cluster, degree, stride), degree, size)
    return seconds + pieces * hops


def all_reduce(cluster: ClusterSpec, degree: float, stride: float, size: float, pieces: float) -> float:
    inside = group_inside(cluster, degree, stride)
    seconds, hops = ring(cluster, inside, degree, size)
    reached = links(cluster)
    tree = 2 * (inside[0] - 1) * reached[0][1]
    for i in range(1, len(reached)):
        tree += 2 * math.log2(max(math.ceil(inside[i] / inside[i - 1]), 1)) * reached[i][1]
    return 2 * seconds + pieces * min(2 * hops, tree)


def all_to_all(cluster: ClusterSpec, degree: float, stride: float, size: float, copies: int | None) -> float:
    inside, reached = group_inside(cluster, degree, stride), links(cluster)
    worst, before = 0.0, 1.0
    for i, (bandwidth, _) in enumerate(reached):
        outside = max(inside[i] - before, 0)
        if copies is not None and i:
            blocks = degree / before
            outside *= blocks * (1 - (1 - 1 / max(blocks, 1)) ** copies) / copies
        worst = max(worst, size * outside / degree / bandwidth)
        before = inside[i]
    if degree <= 1:
        return worst
    return worst + math.log2(degree) * (reached[-1][1] if inside[0] < degree else reached[0][1])


def send(cluster: ClusterSpec, degree: float, stride: float, size: float) -> float:
    if degree <= 1:
        return 0.0
    inside, reached = group_inside(cluster, degree, stride), links(cluster)
    used = 0
    for i in range(1, len(reached)):
        if inside[i - 1] < degree:
            used = i
    return size / reached[used][0] + reached[used][1]


# --- kernels ----------------------------------------------------------------------------------------------------


class Kernel:
    """Seconds of single kernels."""

    def __init__(self, problem: Problem) -> None:
        self.device, self.precision = problem.cluster.device, problem.training.precision
        self.efficiency = self.device.efficiency
        self.launch = self.efficiency.launch_seconds
        self.low = self.precision.startswith(("fp8", "mxfp8", "nvfp4"))
        framework = problem.framework
        self.accumulation = 4.0 if framework.fused_gradient_accumulation else 2.0 + 2.0 * framework.gradient_bytes

    def moved(self, size: float) -> float:
        return size / (self.device.memory_bandwidth * self.efficiency.memory_bandwidth)

    def peak(self, linear: bool) -> float:
        peaks, reached = self.device.peak_flops, self.efficiency.matmul
        if linear and self.precision == "nvfp4" and "nvfp4" in peaks:
            return peaks["nvfp4"] * reached * self.efficiency.fp4
        if linear and self.low and "fp8" in peaks:
            return peaks["fp8"] * reached * self.efficiency.fp8 * (0.53 if self.precision == "fp8-rowwise" else 1.0)
        if self.precision == "fp32":
            return peaks.get("tf32", peaks.get("fp32", 0.0)) * reached
        return (peaks.get("fp16" if self.precision == "fp16" else "bf16") or peaks["fp16"]) * reached

    def product(self, m: float, k: float, n: float, batch: float, linear: bool) -> float:
        m, k, n, batch = (max(x, 1.0) for x in (m, k, n, batch))
        units = max(self.device.sm_count, 1)
        area = math.inf
        for rows, columns, rate in TILES:
            tiles = math.ceil(m / rows) * math.ceil(n / columns) * batch
            area = min(area, math.ceil(tiles / units) * units * rows * columns / rate)
        element = (0.5 if self.precision == "nvfp4" else 1) if linear and self.low else 2
        size = (m * k + k * n) * batch * element + m * n * batch * 2
        return max(2 * area * (k + 100) / self.peak(linear), self.moved(size)) + self.launch

    def linear(
        self, m: float, k: float, n: float, batch: float = 1.0, wide: bool = False
    ) -> tuple[float, float, float]:
        """Forward, input gradient, weight gradient."""

        def aligned(width: float) -> float:
            whole = math.floor(width)
            return next(
                rate for multiple, rate in ((64, 1.0), (32, 0.93), (16, 0.85), (8, 0.75), (1, 0.5))
                if whole % multiple == 0
            )  # fmt: skip

        slow = 1 / min(aligned(k), aligned(n))
        low = self.low and not wide
        cast_in = self.moved(4 * m * k * batch) + self.launch if low else 0.0
        cast_out = self.moved(4 * m * n * batch) + self.launch if low else 0.0
        return (
            slow * self.product(m, k, n, batch, not wide) + cast_in,
            slow * self.product(m, n, k, batch, not wide) + cast_out,
            slow * self.product(k, m, n, batch, not wide) + self.moved(self.accumulation * k * n * batch),
        )

    def attention(self, flops: float, scores: float, kernel: str, width: int, length: int) -> tuple[float, float]:
        rate = self.peak(False) / self.efficiency.matmul
        if kernel != "unfused":
            own = self.efficiency.attention * length / (length + 700)
            rate *= own if kernel == "flash" else self.efficiency.attention_flash2
            rate *= min(1.0, (128 + 32) / 128 * width / (width + 32))
            return flops / rate + self.launch, 2.5 * flops / (rate * 0.8) + 2 * self.launch
        products = 2 * flops / (rate * self.efficiency.matmul * 0.6 * (1.0 if width % 8 == 0 else 0.08))
        return (
            products + self.moved(17 * scores) + 5 * self.launch,
            2 * products + self.moved(21 * scores) + 6 * self.launch,
        )


# --- layers -----------------------------------------------------------------------------------------------------

Parts = dict[str, float]
"""Seconds by where they go: compute, tp, cp, ep."""


class Layers:
    """Passes of one micro-batch through one layer of each kind."""

    def __init__(self, problem: Problem, row: dict[str, int]) -> None:
        self.problem, self.row, self.kernel = problem, row, Kernel(problem)
        model, cluster = problem.model, problem.cluster
        self.tp, self.cp = row["tp"], row["cp"]
        self.sp = row["sp"] == 1 and self.tp > 1
        self.tokens = row["mbs"] * problem.training.sequence_length / self.cp
        self.shard = self.tokens / self.tp if self.sp else self.tokens
        self.heads = model.heads / self.tp
        self.kv_heads = max(model.kv_heads / self.tp, 1.0)
        self.gather = all_gather(cluster, self.tp, 1, 2.0 * model.hidden * self.tokens)

    def block_tp(self, column: tuple[float, float, float]) -> tuple[float, float]:
        framework, gather = self.problem.framework, self.gather
        shown = 1 - framework.overlap_tensor
        if not framework.overlap_tensor_backward:
            return 2 * gather * shown, (3.0 if self.sp else 2.0) * gather * shown
        if self.sp:
            hidden = max(0.0, gather - column[1]) + max(0.0, gather - column[2])
            return 2 * gather * shown, gather * shown + hidden
        return 2 * gather * shown, max(0.0, 2 * gather - column[2])

    def projections(self) -> tuple[list[tuple[float, float, float]], tuple[float, float, float]]:
        model, linear = self.problem.model, self.kernel.linear
        if model.latent is None:
            column = linear(self.tokens, model.hidden, (self.heads + 2 * self.kv_heads) * model.head_dim)
            return [column, linear(self.tokens, self.heads * model.head_dim, model.hidden)], column
        latent = model.latent
        query_key = latent.nope_head_dim + latent.rope_head_dim
        up = linear(self.tokens, latent.key_value_rank, self.heads * (latent.nope_head_dim + latent.value_head_dim))
        output = linear(self.tokens, self.heads * latent.value_head_dim, model.hidden)
        down = linear(self.shard, model.hidden, latent.key_value_rank + latent.rope_head_dim)
        if not latent.query_rank:
            query = linear(self.tokens, model.hidden, self.heads * query_key)
            return [query, up, output, down], query
        query = linear(self.tokens, latent.query_rank, self.heads * query_key)
        return [query, up, output, linear(self.shard, model.hidden, latent.query_rank), down], query

    def core(self) -> tuple[float, float]:
        model, training = self.problem.model, self.problem.training
        sequence = training.sequence_length
        value = model.latent.value_head_dim if model.latent else model.head_dim
        area = sequence * sequence / 2
        kernel = self.problem.framework.attention_kernel if training.attention_kernel == "flash" else "unfused"
        if model.sliding_window and kernel != "unfused":
            band = min(area, sequence * model.sliding_window)
            area = (1 - model.sliding_share) * area + model.sliding_share * band
        pairs = self.row["mbs"] * self.heads / self.cp
        flops = 2 * pairs * area * (model.head_dim + value)
        return self.kernel.attention(flops, pairs * sequence**2, kernel, model.head_dim, sequence)

    def context(self, forward: float, backward: float) -> tuple[float, float]:
        if self.cp == 1:
            return 0.0, 0.0
        model, cluster = self.problem.model, self.problem.cluster
        value = model.latent.value_head_dim if model.latent else model.head_dim
        size = 2 * self.tokens * (self.heads if model.latent else self.kv_heads) * (model.head_dim + value)
        kind = CONTEXT_KINDS[self.row["cp_kind"]]
        if kind == "ring":
            seconds = send(cluster, self.cp, self.tp, size) * (self.cp - 1)
        elif kind == "allgather":
            seconds = all_gather(cluster, self.cp, self.tp, size * self.cp)
        else:
            query = 2 * self.tokens * self.heads * model.head_dim
            seconds = all_to_all(cluster, self.cp, self.tp, 2 * query + size, None)
        hidden = self.problem.framework.overlap_context if kind == "ring" else 0.0

        def exposed(total: float, core: float) -> float:
            return total * (1 - hidden) + max(0.0, total * hidden - core)

        return exposed(seconds, forward), exposed(seconds if kind == "ulysses" else 2 * seconds, backward)

    def dense_feed(self, width: int) -> tuple[list[tuple[float, float, float]], float]:
        model, linear = self.problem.model, self.kernel.linear
        first = linear(self.tokens, model.hidden, (2 if model.gated else 1) * width / self.tp)
        second = linear(self.tokens, width / self.tp, model.hidden)
        return [first, second], self.tokens * width / self.tp * (6 if model.gated else 4)

    def expert_feed(self) -> tuple[list[tuple[float, float, float]], float, tuple[float, float], float, float]:
        problem, row, linear = self.problem, self.row, self.kernel.linear
        model, framework, cluster = problem.model, problem.framework, problem.cluster
        experts = model.experts
        assert experts is not None
        ep, etp = row["ep"], row["etp"]
        own = self.tokens / self.tp
        routed = own * experts.topk
        equal = experts.capacity_factor is not None
        load = experts.capacity_factor if equal else problem.training.expert_imbalance
        arriving = routed * etp * load
        local = experts.count / ep
        gates = 2 if model.gated else 1
        products = [
            linear(arriving / local, model.hidden, gates * experts.ffn_hidden / etp, local),
            linear(arriving / local, experts.ffn_hidden / etp, model.hidden, local),
            linear(own, model.hidden, experts.count, wide=True),
        ]
        size = arriving * experts.ffn_hidden / etp * (6 if model.gated else 4) + arriving * model.hidden * 12
        shared_tp = (0.0, 0.0)
        if experts.shared_ffn_hidden:
            shared, shared_size = self.dense_feed(experts.shared_ffn_hidden)
            products += shared
            size += shared_size
            shared_tp = self.block_tp(shared[0])
        each = 0.0 if equal else framework.expert_launches_each
        launches = (framework.expert_launches + each * local) * self.kernel.launch
        if framework.expert_graphs and cluster.device.grouped_on_device:
            launches = 0.0
        products.append((launches, launches, 0.0))
        exchange = 0.0
        if ep > 1:
            copies = experts.topk if framework.expert_dispatch == "once-a-node" else None
            exchange = all_to_all(cluster, ep, etp, routed * load * model.hidden * 2.0, copies)
        inner = all_gather(cluster, etp, 1, arriving * model.hidden * 2.0)
        return products, size, shared_tp, 2 * exchange, 2 * inner

    def exposed_exchange(self, exchange: float, compute: float) -> float:
        if SCHEDULES[self.row["schedule"]] == "dualpipe-v":
            return max(0.0, exchange - compute)
        return exchange * (1 - self.problem.framework.overlap_expert)

    def layer(self, kind: str) -> tuple[Parts, Parts, dict[str, Parts]]:
        """Forward, backward, and what each recompute level adds."""
        model, framework, training = self.problem.model, self.problem.framework, self.problem.training
        kernel, passes = self.kernel, self.problem.framework.pointwise_passes
        projections, column = self.projections()
        core = self.core()
        ring = self.context(*core)
        if kind == "dense":
            feed, feed_size = self.dense_feed(model.ffn_hidden)
            feed_tp, exchange, inner = self.block_tp(feed[0]), 0.0, 0.0
        else:
            feed, feed_size, feed_tp, exchange, inner = self.expert_feed()
        norm_size = self.shard * model.hidden * (8 if training.fused_norm else 72)
        residual_size = self.shard * model.hidden * (14 if model.attention_dropout else 12)
        rotary = 0.0 if model.learned_positions else 4.0
        position_size = self.tokens * (self.heads + self.kv_heads) * model.head_dim * rotary
        pointwise = passes * kernel.moved(norm_size + residual_size + position_size + feed_size)
        attention_tp = self.block_tp(column)
        forward_products = sum(one[0] for one in projections + feed)
        forward = {
            "compute": forward_products + core[0] + pointwise + 14 * kernel.launch,
            "tp": attention_tp[0] + feed_tp[0],
            "cp": ring[0],
        }
        forward["ep"] = inner + self.exposed_exchange(exchange, forward["compute"])
        backward = {
            "compute": sum(one[1] + one[2] for one in projections + feed)
            + core[1]
            + 1.8 * pointwise
            + 1.5 * 14 * kernel.launch,
            "tp": attention_tp[1] + feed_tp[1],
            "cp": ring[1],
        }
        backward["ep"] = inner + self.exposed_exchange(exchange, backward["compute"])
        activation = passes * kernel.moved(feed_size)
        of_module = {
            "core_attention": core[0],
            "norm": passes * kernel.moved(norm_size),
            "activation": activation,
            "feed_forward_activation": activation,
            "feed_forward": sum(one[0] for one in feed),
            "every_second_product": forward_products / 2,
            "latent_up": projections[0][0] + projections[1][0] if model.latent else 0.0,
            "attention": sum(one[0] for one in projections) + core[0],
        }
        select = sum(of_module.get(module, 0.0) for module in framework.select_modules)
        comm = sum(of_module.get(module, 0.0) for module in framework.comm_modules)
        comm_tp = 2 * self.gather * (1 - framework.overlap_tensor) if self.sp else 0.0
        nothing = dict.fromkeys(forward, 0.0)
        return forward, backward, {
            "none": nothing,
            "select": {**nothing, "compute": select},
            "comm": {**nothing, "compute": comm, "tp": comm_tp},
            "both": {**nothing, "compute": select + comm, "tp": comm_tp},
            "full": forward,
        }  # fmt: skip

    def end(self, kind: str) -> tuple[Parts, Parts]:
        model, kernel = self.problem.model, self.kernel
        nothing = {"compute": 0.0, "tp": self.gather, "cp": 0.0, "ep": 0.0}
        if kind == "embedding":
            size = self.shard * model.hidden
            forward, backward = (kernel.moved(size * each) + 2 * kernel.launch for each in (6, 8))
            return {**nothing, "compute": forward}, {**nothing, "compute": backward}
        vocab = math.ceil(model.vocab / self.tp / 128) * 128
        projection = kernel.linear(self.tokens, model.hidden, vocab, wide=True)
        loss = kernel.moved(self.tokens * vocab * (10 if self.problem.framework.fused_loss else 18))
        return (
            {**nothing, "compute": projection[0] + loss},
            {**nothing, "compute": projection[1] + projection[2] + 0.7 * loss},
        )


# --- the step ---------------------------------------------------------------------------------------------------


def step(problem: Problem, row: dict[str, int]) -> float:
    """Seconds of one step."""
    model, framework, cluster = problem.model, problem.framework, problem.cluster
    pp, vpp, mb, dp, tp, cp = (row[name] for name in ("pp", "vpp", "mb", "dp", "tp", "cp"))
    layers = Layers(problem, row)
    level = RECOMPUTE[row["recompute"]]
    share = 1.0 if row["recompute_layers"] < 0 else min(1.0, row["recompute_layers"] / (model.layers / (pp * vpp)))
    work: dict[str, float] = {}
    passes: dict[str, tuple[Parts, Parts]] = {}
    shown: dict[str, tuple[float, float]] = {}
    for kind in ("dense", "moe"):
        if any(group.kind == kind for group in model.groups):
            forward, backward, again = layers.layer(kind)
            passes[kind] = forward, backward
            more = share * sum(again[level].values())
            work[kind] = sum(forward.values()) + sum(backward.values()) + more
            if row["swap_act"]:
                kept, _ = kept_and_transient(problem, row, kind, level)
                plain, _ = kept_and_transient(problem, row, kind, "none")
                device = cluster.device
                travel = (share * kept + (1 - share) * plain) / (device.host_bandwidth * device.efficiency.host_link)
                shown[kind] = max(0.0, travel - sum(forward.values())), max(0.0, travel - sum(backward.values()) - more)
                work[kind] += sum(shown[kind])
    ends = {kind: sum(sum(part.values()) for part in layers.end(kind)) for kind in ("embedding", "head")}
    first, last = ends["embedding"], ends["head"]
    if model.mtp_layers:
        kind = model.groups[-1].kind
        forward, backward, again = layers.layer(kind)
        joining = layers.kernel.linear(layers.shard, 2 * model.hidden, model.hidden)
        head_forward, head_backward = layers.end("head")
        # The prediction layer's passes hold compute and tensor parallelism of both, the rest of the layer's.
        both = (
            sum(forward.values())
            + sum(backward.values())
            + share * sum(again[level].values())
            + joining[0]
            + sum(joining[1:])
        )
        both += sum(head[name] for head in (head_forward, head_backward) for name in ("compute", "tp"))
        last += model.mtp_layers * both
    count = {kind: sum(group.count for group in model.groups if group.kind == kind) for kind in ("dense", "moe")}
    everything = first + last + sum(count[kind] * work[kind] for kind in work)
    slowest = 0.0
    for stage, held in enumerate(stage_layers(problem, row)):
        seconds = sum(held[kind] * work[kind] for kind in work)
        seconds += (first if stage == 0 else 0.0) + (last if stage == pp - 1 else 0.0)
        slowest = max(slowest, seconds)
    if framework.uneven_stages and pp > 1 and model.layers % (pp * vpp):
        slowest = min(slowest, by_hand(pp, model.layers, first, last, everything))
    stride = dp * cp * tp
    sending = send(cluster, pp, stride, 2.0 * model.hidden * layers.tokens / tp)
    sends = 2 * sending * ((pp - 1) + mb * vpp * (1 - framework.overlap_pipeline))
    fill = (pp - 1) / pp * everything * FILL[SCHEDULES[row["schedule"]]] / vpp
    hiding_parts = ("compute", "tp", "cp", *(("ep",) if SCHEDULES[row["schedule"]] == "dualpipe-v" else ()))
    hiding: tuple[float, ...] = tuple(
        sum(
            count[kind] * (sum(passes[kind][way][name] for name in hiding_parts) + shown.get(kind, (0.0, 0.0))[way])
            for kind in passes
        )
        / pp
        for way in (0, 1)
    )
    return mb * slowest + fill + sends + outside(problem, row, hiding[0], hiding[1])


def by_hand(pp: int, layers: int, first: float, last: float, everything: float) -> float:
    """The slowest stage where layers may be moved: the least makespan under which the stages hold all."""
    each = (everything - first - last) / layers
    best = math.inf
    for own in range(layers + 1):
        for extra in (0.0, first, last):
            slowest = max(own * each + extra, first, last)
            room = slowest / each + 1e-9
            held = (
                (pp - 2) * math.floor(room)
                + math.floor(max(0.0, room - first / each))
                + math.floor(max(0.0, room - last / each))
            )
            if held >= layers:
                best = min(best, slowest)
    return best


def outside(problem: Problem, row: dict[str, int], forward: float, backward: float) -> float:
    """Data parallelism that nothing hides, the optimizer, and compute slowed by what is hidden."""
    model, framework, cluster = problem.model, problem.framework, problem.cluster
    pp, mb, tp, zero = row["pp"], row["mb"], row["tp"], row["zero_stage"]
    copies = row["dp"] * row["cp"]
    expert_copies = max(1.0, copies * tp / (row["ep"] * row["etp"]))
    shard = row["op"] if zero >= 1 else 1
    expert_shard = min(shard, expert_copies) if zero >= 1 else 1
    dense = expert = 0.0
    for group in model.groups:
        layer = parameters.layer(model, group.kind)
        replicated = layer.attention_replicated + layer.norms + layer.router
        dense += group.count / pp * ((layer.attention + layer.feed_forward) / tp + replicated)
        expert += group.count / pp * layer.experts / (row["ep"] * row["etp"])
    dense += (parameters.embedding(model) + (parameters.head(model) if pp == 1 else 0)) / tp
    held = max(model.layers / pp, 1.0)
    pieces = held * (framework.gathers_per_layer if zero == 3 else 1)
    reduce = gather = 0.0
    for elements, degree, over, stride in (
        (dense, copies, shard, tp),
        (expert, expert_copies, expert_shard, row["ep"] * row["etp"]),
    ):
        if not elements:
            continue
        size = elements * framework.gradient_reduce_bytes
        reduce += all_gather(cluster, over, stride, size, pieces)
        if degree > over:
            reduce += all_reduce(cluster, degree / over, stride * over, size / over, pieces)
        gather += all_gather(cluster, over, stride, elements * 2.0, pieces)
    bytes_each = framework.gradient_bytes + 2 * framework.optimizer_bytes + framework.parameter_bytes
    optimizer = Kernel(problem).moved((dense / shard + expert / expert_shard) * bytes_each)
    if row["swap_os"]:
        states = (dense / shard + expert / expert_shard) * framework.optimizer_bytes
        device = cluster.device
        optimizer = max(optimizer, states / (device.host_bandwidth * device.efficiency.host_link))

    def shown(seconds: float, hidden: float, window: float) -> float:
        return seconds if hidden == 0 else max(seconds / held, seconds - hidden * window)

    ahead = framework.overlap_parameter_gather
    contention: float = cluster.device.efficiency.contention
    if zero == 3:
        exposed = mb * (shown(gather, ahead, forward) + shown(gather + reduce, ahead, backward))
        return exposed + optimizer + contention * mb * (reduce + 2 * gather)
    exposed = shown(reduce, framework.overlap_gradient_reduce, backward)
    if zero >= 1:
        exposed += shown(gather, ahead, forward)
    return exposed + optimizer + contention * (reduce + (gather if zero >= 1 else 0.0))
