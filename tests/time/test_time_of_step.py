"""Steps added up by hand, and what must hold for every layout."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paraplan import time as performance
from paraplan.operators import collectives as communication
from paraplan.operators.kernels import Kernels
from paraplan.operators.layer_kinds import KINDS
from paraplan.question.clusters import load_device, make_cluster
from paraplan.question.clusters.placement import place
from paraplan.question.clusters.spec import DeviceSpec
from paraplan.question.frameworks import load_framework
from paraplan.question.layouts import RECOMPUTE, SCHEDULES, Layouts
from paraplan.question.models import load_model
from paraplan.question.models.spec import Experts, LayerGroup
from paraplan.question.problem import Problem
from paraplan.question.training import TrainingSpec

PEAK = 1e14

# One layer, 1024 tokens, FLOPs of m·n·(k + 100) products, times 2, in units of 2·1024·1024:
# forward   qkv 3·1124 + out 1124 + up 4·1124 + down 4196          = 13,188
# backward  dX: qkv 3172 + out 1124 + up 4196 + down 4·1124        = 12,988
#           dW: (3 + 1 + 4 + 4)·1124                               = 13,488
UNIT = 2 * 1024 * 1024 / PEAK
FORWARD, BACKWARD = 13_188 * UNIT, (12_988 + 13_488) * UNIT
# Causal attention: 2 · 8 heads · 1024²/2 · (128 + 128) FLOPs, as slow as with 700 tokens more; backward 2.5 times those
# at 0.8 of the rate.
CORE = 2 * 8 * 1024**2 / 2 * 256 / PEAK * (1024 + 700) / 1024
CORE_BACKWARD = 2.5 / 0.8 * CORE
# Head: 1024 tokens to 12,800 words: forward 12.5·1124, dX 12,800 + 100, dW 12.5·1124.
HEAD = (12.5 * 1124 + 12_900 + 12.5 * 1124) * UNIT
LAYER = FORWARD + BACKWARD + CORE + CORE_BACKWARD


def test_step_on_one_device_is_the_sum_of_its_products(problem: Problem) -> None:
    layouts = Layouts.of([{"mb": 8}])
    # 8 micro-batches through 4 layers and the head; nothing is communicated, memory is free.
    expected = 8 * (4 * LAYER + HEAD)
    assert performance.estimate(problem, layouts).step_time_N[0] == pytest.approx(expected, rel=1e-9)


def test_step_when_fully_recomputed_adds_one_forward_a_layer(problem: Problem) -> None:
    layouts = Layouts.of([{"mb": 8, "recompute": RECOMPUTE.index("full")}])
    table = performance.estimate(problem, layouts)
    assert table.components["recompute"][0] == pytest.approx(8 * 4 * (FORWARD + CORE), rel=1e-9)


def test_step_with_sequence_parallel_tensors_shows_three_gathers_a_block(problem: Problem) -> None:
    layouts = Layouts.of([{"mb": 8, "tp": 2, "sp": 1}])
    # One gather: 2 bytes · 1024 · 1024, half of it over 1e11 bytes/s.
    gather = 2 * 1024 * 1024 / 2 / 1e11
    # Each of two blocks: forward gathers and scatters, backward gathers once; its other two hide behind products of
    # half the columns, which take 34 us and more against 10 us. Embedding and head: a gather each way.
    expected = 8 * (4 * 2 * 3 + 4) * gather
    table = performance.estimate(problem, layouts)
    assert table.components["tp_comm"][0] == pytest.approx(expected, rel=1e-9)


def test_step_of_a_pipeline_is_its_slowest_stage_and_the_fill(problem: Problem) -> None:
    layouts = Layouts.of([{"mb": 8, "pp": 2, "dp": 1, "tp": 1}])
    # Two layers a stage, the head on the last; the fill is half of one micro-batch through the model.
    slowest, fill = 2 * LAYER + HEAD, (4 * LAYER + HEAD) / 2
    # Neighbouring stages are one device apart, inside the node: 2 MiB over 1e11 bytes/s, there and back, one fill and
    # eight in the steady phase, which Megatron's batched exchange does not hide.
    sends = 2 * (2 * 1024 * 1024 / 1e11) * (1 + 8)
    table = performance.estimate(problem, layouts)
    assert table.step_time_N[0] == pytest.approx(8 * slowest + fill + sends, rel=1e-9)
    assert table.components["pp_comm"][0] == pytest.approx(sends, rel=1e-9)


def test_step_when_interleaved_divides_the_fill_by_the_chunks(problem: Problem) -> None:
    interleaved = SCHEDULES.index("interleaved")
    layouts = Layouts.of([{"mb": 8, "pp": 2}, {"mb": 8, "pp": 2, "vpp": 2, "schedule": interleaved}])
    bubble = performance.estimate(problem, layouts).components["bubble"]
    # What the head adds to the last stage stays: 8·(slowest − average); the fill halves.
    assert bubble[0] - bubble[1] == pytest.approx((4 * LAYER + HEAD) / 4, rel=1e-9)


def test_step_when_layers_do_not_divide_takes_them_off_the_head(problem: Problem) -> None:
    five = replace(problem, model=replace(problem.model, groups=(LayerGroup("dense", 5),), vocab=38_400))
    layouts = Layouts.of([{"mb": 8, "pp": 2}])
    table = performance.estimate(five, layouts)
    # Three times the words: head = (37.5·1124 + 38,500 + 37.5·1124) units, 2.8 layers. Dealt evenly the last stage
    # would take 2 + 2.8 layers; by hand it gets one, and the first stage's four are the slowest.
    head = (2 * 37.5 * 1124 + 38_500) * UNIT
    assert 1 + head / LAYER < 4 < 2 + head / LAYER
    expected = 8 * 4 * LAYER + (5 * LAYER + head) / 2 + table.components["pp_comm"][0]
    assert table.step_time_N[0] == pytest.approx(expected, rel=1e-9)


def experts_of(problem: Problem, **changes: float) -> Problem:
    """Four layers of 8 experts, two a token, on devices whose launches take 10 microseconds."""
    device = replace(problem.cluster.device, efficiency=replace(problem.cluster.device.efficiency, launch_seconds=1e-5))
    model = replace(
        problem.model, groups=(LayerGroup("moe", 4),), experts=Experts(8, 2, 4096, **changes), attention_dropout=False
    )
    return replace(problem, model=model, cluster=replace(problem.cluster, device=device))


def test_experts_without_a_capacity_are_launched_one_by_one(problem: Problem) -> None:
    framework = replace(problem.framework, expert_launches=100.0, expert_launches_each=10.0)
    dropless = replace(experts_of(problem), framework=framework)
    layouts = Layouts.of([{"mb": 8}, {"mb": 4, "dp": 2, "ep": 2}])
    fewer = replace(dropless, framework=replace(framework, expert_launches_each=0.0))
    # 4 layers, forward and backward, 8 experts on the one device of the first layout, 4 of the second.
    saved = performance.step_times(dropless, layouts) - performance.step_times(fewer, layouts)
    assert saved == pytest.approx([8 * 4 * 2 * 8 * 10 * 1e-5, 4 * 4 * 2 * 4 * 10 * 1e-5], rel=1e-6)
    equal = replace(experts_of(problem, capacity_factor=1.0), framework=framework)
    assert performance.step_times(equal, layouts) == pytest.approx(performance.step_times(fewer, layouts), rel=1e-12)


def test_a_graph_of_the_whole_step_launches_nothing_where_the_device_can(problem: Problem) -> None:
    graphs = replace(experts_of(problem), framework=replace(problem.framework, expert_graphs=True))
    able = replace(graphs.cluster, device=replace(graphs.cluster.device, grouped_on_device=True))
    layouts = Layouts.of([{"mb": 8}])
    saved = performance.step_times(graphs, layouts) - performance.step_times(replace(graphs, cluster=able), layouts)
    framework = problem.framework
    each_way = (framework.expert_launches + 8 * framework.expert_launches_each) * 1e-5
    assert saved[0] == pytest.approx(8 * 4 * 2 * each_way, rel=1e-6)


def test_the_busiest_experts_set_the_pace(problem: Problem) -> None:
    even = experts_of(problem)
    uneven = replace(even, training=replace(even.training, expert_imbalance=1.5))
    layouts = Layouts.of([{"mb": 8}])
    # Half as many rows again of 2048, in units as above: 4096 columns over 1124 of k and 1024 over 4196, forward and
    # for the inputs' gradients; for the weights' the rows are k, 128 more of it for 8 experts' two 1024 x 4096.
    more = performance.estimate(uneven, layouts).components["compute"][0]
    less = performance.estimate(even, layouts).components["compute"][0]
    units = 2 * 0.5 * 2 * (4 * 1124 + 4196) + 2 * 8 * 4 * 128
    assert more - less == pytest.approx(8 * 4 * units * UNIT, rel=1e-6)
    capacity = experts_of(problem, capacity_factor=1.5)
    slots = replace(capacity, framework=replace(capacity.framework, expert_launches_each=0.0))
    same = replace(uneven, framework=slots.framework)
    assert performance.step_times(slots, layouts) == pytest.approx(performance.step_times(same, layouts), rel=1e-12)


def test_exchange_once_a_node_is_cheaper_only_between_nodes() -> None:
    cluster = make_cluster(load_device("h100"), 64)
    inside = place(cluster.levels, np.array([8]), np.array([1]))
    across = place(cluster.levels, np.array([64]), np.array([1]))
    copies, once = communication.all_to_all(cluster, across, 1e9), communication.all_to_all(cluster, across, 1e9, 8)
    # 8 copies to 8 nodes reach 8·(1 − (7/8)^8) = 5.25 of them in the mean.
    assert once[0] / copies[0] == pytest.approx((1 - (7 / 8) ** 8), rel=0.01)
    plain = communication.all_to_all(cluster, inside, 1e9)
    assert communication.all_to_all(cluster, inside, 1e9, 8)[0] == plain[0]


def test_a_job_takes_equal_parts_of_every_domain_of_several_nodes() -> None:
    device = load_device("gb200")
    # 256 devices on NVLink domains of 72: 4 x 64; 144 on two whole domains; 8 in one.
    assert [make_cluster(device, count).levels[0].span for count in (256, 144, 8)] == [64, 72, 8]


def test_data_parallel_reduction_moves_with_the_number_of_replicas(problem: Problem) -> None:
    slow = replace(problem, framework=replace(problem.framework, overlap_gradient_reduce=0.0))
    layouts = Layouts.of([{"mb": 8}, {"mb": 4, "dp": 2}, {"mb": 1, "dp": 8}])
    shown = performance.estimate(slow, layouts).components["dp_comm"]
    # Gradients of 4 bytes, reduced and sent back: 2·(g − 1)/g of 4 layers of 12·1024² + 13·1024 weights and more.
    assert shown[0] == 0
    assert shown[2] / shown[1] == pytest.approx((7 / 8) / (1 / 2), rel=1e-9)


def test_matmul_pays_whole_waves_of_the_tile_that_is_fastest_then(device: DeviceSpec) -> None:
    kernels = Kernels(replace(device, sm_count=4), "bf16")
    # On 4 units 5 tiles of 256 x 128 take two waves, 8 · 32,768 = 262,144 elements; 10 of 128 x 128 three, at 0.95 of
    # the rate, 12 · 16,384 / 0.95 = 206,955; 20 of 128 x 64 fill five at 0.8: 20 · 8,192 / 0.8 = 204,800.
    seconds = kernels.matmul(5 * 256, 808, 128, 1, linear=True)
    assert float(seconds) == pytest.approx(2 * 204_800 * (808 + 100) / PEAK, rel=1e-9)


def test_linear_when_its_width_fills_no_cache_line_is_slower(device: DeviceSpec) -> None:
    kernels = Kernels(device, "bf16")
    aligned, odd = (float(kernels.linear(2048, 1024, width).forward) for width in (1792, 1800))
    assert odd > 1.2 * aligned


def test_attention_without_a_tiled_kernel_is_slower(device: DeviceSpec) -> None:
    kernels = Kernels(replace(device, memory_bandwidth=1e12), "bf16")
    tiled, plain, odd = (
        kernels.attention(1e10, 1e7, kernel, width, 4096)[0]
        for kernel, width in (("flash", 128), ("unfused", 128), ("unfused", 150))
    )
    assert tiled < plain
    # Twice the FLOPs at 0.6 of the rate; 8 does not divide 150, which leaves 0.08 of that.
    assert odd - plain == pytest.approx(2e10 / (0.6 * PEAK) * (1 / 0.08 - 1), rel=1e-9)


def test_attention_of_narrow_heads_pays_its_softmax(device: DeviceSpec) -> None:
    kernels = Kernels(device, "bf16")
    narrow, usual, wide = (kernels.attention(1e12, 0, "flash", width, 4096)[0] for width in (64, 128, 256))
    # The softmax of a score costs 32 elements: (64 + 32) / 64 over (128 + 32) / 128.
    assert narrow / usual == pytest.approx(1.5 / 1.25, rel=1e-9)
    assert wide == usual


def test_ring_passes_every_rank_and_a_tree_every_level(device: DeviceSpec) -> None:
    a100 = make_cluster(load_device("a100"), 1536)
    everyone = place(a100.levels, np.array([1536]), np.array([1]))
    inner, outer = a100.levels[0].latency, a100.levels[1].latency
    # 192 nodes of 8: a message crosses 191 times between nodes and 7 times inside each.
    ring = 192 * 7 * inner + 191 * outer
    assert communication.all_gather(a100, everyone, 0.0)[0] == pytest.approx(ring, rel=1e-9)
    # Twelve collectives wait twelve times.
    assert communication.all_gather(a100, everyone, 0.0, 12)[0] == pytest.approx(12 * ring, rel=1e-9)
    # A reduction of few bytes goes up and down a tree of the nodes instead.
    tree = 2 * 7 * inner + 2 * np.log2(192) * outer
    assert communication.all_reduce(a100, everyone, 0.0)[0] == pytest.approx(tree, rel=1e-9)


MODELS = ("gpt3-175b", "llama3-70b", "mixtral-8x7b", "deepseek-v3")


@st.composite
def questions(draw: st.DrawFn) -> tuple[Problem, dict[str, int]]:
    model = load_model(draw(st.sampled_from(MODELS)))
    framework = load_framework(draw(st.sampled_from(["megatron", "nemo", "torchtitan", "mindspeed"])))
    row = {name: draw(st.sampled_from([1, 2, 4])) for name in ("tp", "cp", "pp", "dp", "mbs")}
    row |= {"mb": draw(st.sampled_from([4, 8])), "sp": int(row["tp"] > 1), "zero_stage": draw(st.integers(0, 3))}
    row["op"] = row["dp"] * row["cp"] if row["zero_stage"] else 1
    row["recompute"] = draw(st.integers(0, len(RECOMPUTE) - 1))
    if model.experts:
        row["ep"] = row["dp"]
    devices = row["tp"] * row["cp"] * row["pp"] * row["dp"]
    cluster = make_cluster(load_device(draw(st.sampled_from(["a100", "h100", "gb200", "a2"]))), devices)
    return Problem(model, cluster, TrainingSpec(4096, row["dp"] * row["mbs"] * row["mb"]), framework), row


@settings(max_examples=60, deadline=None)
@given(questions())
def test_components_sum_to_the_step_for_any_layout(question: tuple[Problem, dict[str, int]]) -> None:
    problem, row = question
    table = performance.estimate(problem, Layouts.of([row]))
    assert np.sum(list(table.components.values())) == pytest.approx(table.step_time_N[0], rel=1e-9)
    assert all(seconds[0] >= -1e-12 for seconds in table.components.values())
    assert performance.step_times(problem, Layouts.of([row]))[0] == pytest.approx(table.step_time_N[0], rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(questions(), st.floats(1.0, 4.0))
def test_faster_links_never_slow_a_layout(question: tuple[Problem, dict[str, int]], factor: float) -> None:
    problem, row = question
    levels = tuple(replace(level, bandwidth=level.bandwidth * factor) for level in problem.cluster.levels)
    faster = replace(problem, cluster=replace(problem.cluster, levels=levels))
    layouts = Layouts.of([row])
    assert performance.step_times(faster, layouts)[0] <= performance.step_times(problem, layouts)[0] * (1 + 1e-12)


@settings(max_examples=30, deadline=None)
@given(questions())
def test_bubble_share_falls_with_more_micro_batches(question: tuple[Problem, dict[str, int]]) -> None:
    problem, row = question
    table = performance.estimate(problem, Layouts.of([row, row | {"mb": 4 * row["mb"]}]))
    share = table.components["bubble"] / table.step_time_N
    assert share[1] <= share[0] + 1e-9


def test_layer_times_add_up_to_the_step_without_a_pipeline() -> None:
    model = load_model("deepseek-v3")
    cluster = make_cluster(load_device("h800"), 64)
    problem = Problem(model, cluster, TrainingSpec(4096, 128), load_framework("megatron"))
    layouts = Layouts.of([{"dp": 64, "ep": 64, "mb": 2, "zero_stage": 1, "op": 64}])
    times = performance.layer_times(problem, layouts)
    counts = np.array([{"embedding": 1, "dense": 3, "moe": 58, "mtp": 1, "head": 1}[kind] for kind in KINDS])
    expected = 2 * (times.forward_NK[0] + times.backward_NK[0]) @ counts + times.outside_N[0]
    assert performance.step_times(problem, layouts)[0] == pytest.approx(expected, rel=1e-9)


def test_experts_degree_of_a_model_without_experts_changes_nothing(problem: Problem) -> None:
    problem = replace(problem, cluster=replace(problem.cluster, levels=load_device("h100").levels))
    layouts = Layouts.of([{"dp": 16, "mb": 1, "etp": etp, "zero_stage": 3, "op": 16} for etp in (1, 2, 16)])
    times = performance.step_times(problem, layouts)
    assert times[1:] == pytest.approx(times[0], rel=1e-12)


def test_permuted_layouts_give_permuted_times() -> None:
    problem = Problem(
        load_model("llama3-70b"), make_cluster(load_device("h100"), 64), TrainingSpec(8192, 64), load_framework("nemo")
    )
    rows = [{"tp": tp, "pp": pp, "dp": 64 // (tp * pp), "mb": tp * pp} for tp in (1, 2, 4, 8) for pp in (1, 2, 4)]
    layouts = Layouts.of(rows)
    order = np.random.default_rng(1).permutation(len(rows))
    seconds = performance.step_times(problem, layouts)
    assert np.array_equal(performance.step_times(problem, layouts.take(order)), seconds[order])


def test_deepseek_v3_on_its_own_cluster() -> None:
    # arXiv:2412.19437, sections 1 and 3.2: 180,000 H800 hours for 10^12 tokens; 16 stages, 64-way experts, DualPipe.
    problem = Problem(
        load_model("deepseek-v3"),
        make_cluster(load_device("h800"), 2048),
        TrainingSpec(4096, 15360, "fp8"),
        load_framework("megatron"),
    )
    layout = {"dp": 128, "ep": 64, "pp": 16, "vpp": 2, "mb": 120, "zero_stage": 1, "op": 128}
    layout |= {"schedule": SCHEDULES.index("dualpipe-v"), "recompute": RECOMPUTE.index("select")}
    step = performance.step_times(problem, Layouts.of([layout]))[0]
    assert step / (4096 * 15360) * 1e12 * 2048 / 3600 == pytest.approx(180_000, rel=0.05)


def test_mfu_of_a_published_run_agrees_with_its_report() -> None:
    # NVIDIA's Megatron Bridge performance summary: Llama 3 70B on 64 GB200, 256 sequences of 8192 in 8.828 s.
    problem = Problem(
        load_model("llama3-70b"),
        make_cluster(load_device("gb200"), 64),
        TrainingSpec(8192, 256),
        load_framework("nemo"),
    )
    step = np.array([8.828])
    tokens = performance.tokens_per_second_per_device(problem, step)[0]
    assert tokens == pytest.approx(256 * 8192 / 8.828 / 64)
    # A token takes 6·69.5e9 FLOPs in the weights (70.55e9 without the embedding's 1.05e9) and in causal attention
    # 3·2·(8192/2)·64 heads·256·80 layers = 32.2e9: 449.4e9.
    assert performance.mfu(problem, step)[0] == pytest.approx(tokens * 449.4e9 / 2.5e15, rel=0.01)
