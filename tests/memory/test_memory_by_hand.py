"""Memory of small layouts against sums by hand, and invariants."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paraplan import memory
from paraplan.operators.parameters import embedding, head, layer, total
from paraplan.question.clusters import load_device, make_cluster
from paraplan.question.clusters.spec import Efficiency
from paraplan.question.frameworks import load_framework
from paraplan.question.layouts import RECOMPUTE, Layouts
from paraplan.question.models import load_model
from paraplan.question.models.spec import Experts, LayerGroup, ModelSpec
from paraplan.question.problem import Problem
from paraplan.question.training import TrainingSpec
from paraplan.search import SearchSpec, enumerate_space

FULL = RECOMPUTE.index("full")
SMALL = ModelSpec("small", "llama", 64, 4, 2, 16, 128, 1000, (LayerGroup("dense", 8),))


def problem_of(model: ModelSpec = SMALL, devices: int = 8, batch: int = 8, sequence: int = 32) -> Problem:
    device = replace(load_device("h100"), efficiency=Efficiency(overhead_bytes=0.0, fragmentation=0.0))
    return Problem(model, make_cluster(device, devices), TrainingSpec(sequence, batch), load_framework("megatron"))


def parts(problem: Problem, row: dict[str, int]) -> dict[str, float]:
    table = memory.estimate(problem, Layouts.of([row]))
    assert sum(float(value[0]) for value in table.components.values()) == pytest.approx(float(table.peak_N[0]))
    return {name: float(value[0]) for name, value in table.components.items()}


def test_one_device_by_hand() -> None:
    # One layer: q,o 2·64², k,v 2·64·32, three of 64·128, norms 2·64 = 37,504 - 8 layers, table and head 64,000 each,
    # last norm 64. Bytes: weights 2, gradients 4, Adam 12.
    each = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
    count = 8 * each + 2 * 1000 * 64 + 64
    found = parts(problem_of(devices=1), {"dp": 1, "mbs": 1, "mb": 8, "zero_stage": 0})
    assert found["parameters"] == 2 * count
    assert found["gradients"] == 4 * count
    assert found["optimizer"] == 12 * count
    # Activations of 32 tokens: per token residual 2·2·64, norm outputs 2·2·64, q,k,v 2·(64 + 2·32), attention output
    # 2·64 and 4 for each of 4 heads, feed-forward 2·2·128 and 2·128; head: final norm's input and output 2·2·64.
    token = 256 + 256 + 256 + (128 + 16) + 512 + 256
    assert found["activations"] == 32 * (8 * token + 256)
    # Fused loss: 6 bytes for each of 32·1000 logits.
    assert found["loss"] == 6 * 32 * 1000


def test_transformer_engine_keeps_8_bit_inputs() -> None:
    low = replace(problem_of(devices=1), training=TrainingSpec(32, 8, "fp8"))
    layout = {"dp": 1, "mbs": 1, "mb": 8, "zero_stage": 0}
    # As above with 1 byte for the norms' outputs and the feed-forward's, and an 8-bit copy of the attention's output.
    token = 256 + 128 + 256 + (128 + 16 + 64) + 512 + 128
    assert parts(low, layout)["activations"] == 32 * (8 * token + 256)
    wide = replace(low, framework=replace(low.framework, low_precision_inputs=False))
    token = 256 + 256 + 256 + (128 + 16) + 512 + 256
    assert parts(wide, layout)["activations"] == 32 * (8 * token + 256)


def test_capacity_and_imbalance_fill_the_experts() -> None:
    model = replace(SMALL, ffn_hidden=0, groups=(LayerGroup("moe", 8),), experts=Experts(4, 2, 32))
    layout = {"dp": 1, "mbs": 1, "mb": 8, "zero_stage": 0}
    even = problem_of(model, devices=1)
    uneven = replace(even, training=replace(even.training, expert_imbalance=1.5))
    # Two copies of a token: its 64 numbers, 2·32 of the first product and 32 of the activation, 2 bytes each.
    more = parts(uneven, layout)["activations"] - parts(even, layout)["activations"]
    assert more == 8 * 32 * 0.5 * 2 * 2 * (64 + 2 * 32 + 32)
    full = replace(even, model=replace(model, experts=Experts(4, 2, 32, capacity_factor=1.5)))
    assert parts(full, layout) == parts(uneven, layout)


def test_tensor_and_sequence_parallel_by_hand() -> None:
    # tp 2 with sp: sharded products halve, and so do the hidden states between them.
    found = parts(problem_of(devices=2), {"tp": 2, "sp": 1, "mbs": 1, "mb": 8, "zero_stage": 0})
    token = 256 + 256 + 256 + (128 + 16) + 512 + 256
    assert found["activations"] == 32 * (8 * token + 256) / 2
    without = parts(problem_of(devices=2), {"tp": 2, "sp": 0, "mbs": 1, "mb": 8, "zero_stage": 0})
    # Without it residuals, norm outputs and the final norm stay whole.
    assert without["activations"] == 32 * (8 * (512 + (token - 512) / 2) + 256)


def test_optimizer_sharding_by_hand() -> None:
    count = total(SMALL)
    by_stage = [
        parts(problem_of(), {"dp": 8, "mbs": 1, "mb": 1, "zero_stage": z, "op": 8 if z else 1}) for z in range(4)
    ]
    assert [one["optimizer"] for one in by_stage] == pytest.approx([12 * count, *[12 * count / 8] * 3])
    assert [one["gradients"] for one in by_stage] == pytest.approx([4 * count, 4 * count, 4 * count / 8, 4 * count / 8])
    assert [one["parameters"] for one in by_stage] == pytest.approx([2 * count] * 3 + [2 * count / 8])
    swapped = parts(problem_of(), {"dp": 8, "mb": 1, "zero_stage": 1, "op": 8, "swap_os": 1})
    assert swapped["optimizer"] == 0


def test_uneven_pipeline_reports_the_heaviest_stage() -> None:
    # 8 layers on 3 stages: 2, 3, 3 minus what the rule keeps off the ends: [2, 4, 2] never, here [2, 3, 3] -> the rest
    # goes before the last chunk: stages hold 3, 3, 2.
    problem = problem_of(devices=3, batch=6)
    row = {"pp": 3, "mbs": 1, "mb": 6, "zero_stage": 0, "recompute": FULL}
    stages = memory.per_stage(problem, Layouts.of([row]))
    table = memory.estimate(problem, Layouts.of([row]))
    assert float(table.peak_N[0]) == pytest.approx(float(stages.peak_P.max()))
    each = layer(SMALL, "dense").total
    held = (stages.components["parameters"] - np.array([2 * embedding(SMALL), 0, 2 * head(SMALL)])) / (2 * each)
    assert held == pytest.approx([3, 3, 2])


def test_experts_follow_ep_and_etp_not_tp() -> None:
    # 8 experts of width 128: EP 4 x ETP 1 on TP 2: a rank holds 2 whole experts, whatever tp is.
    model = replace(SMALL, ffn_hidden=0, groups=(LayerGroup("moe", 8),), experts=Experts(8, 2, 128))
    row = {"dp": 4, "tp": 2, "sp": 1, "ep": 4, "etp": 1, "mb": 2, "zero_stage": 0}
    counted = layer(model, "moe")
    expected = 8 * ((counted.attention) / 2 + counted.router + counted.norms + counted.experts / 4)
    expected += (embedding(model) + head(model)) / 2
    assert parts(problem_of(model), row)["parameters"] == pytest.approx(2 * expected, rel=1e-3)


def test_deepseek_weights_on_one_stage() -> None:
    problem = Problem(
        load_model("deepseek-v3"),
        make_cluster(load_device("h800"), 2048),
        TrainingSpec(4096, 15360),
        load_framework("megatron"),
    )
    row = {"dp": 128, "pp": 16, "ep": 64, "mbs": 1, "mb": 120, "zero_stage": 1, "op": 128}
    weights = memory.per_stage(problem, Layouts.of([row])).components["parameters"].sum() / 2
    # All 671 B, experts over 64, the rest whole on every rank, and the prediction layer.
    counted = layer(problem.model, "moe")
    experts = 58 * counted.experts
    expected = (total(problem.model, mtp=True) - experts - counted.experts) + (experts + counted.experts) / 64
    assert weights == pytest.approx(expected, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["llama3-8b", "mixtral-8x7b", "deepseek-v2-lite"]), st.integers(0, 10_000))
def test_heaviest_stage_equals_the_maximum_over_all(name: str, seed: int) -> None:
    problem = Problem(
        load_model(name), make_cluster(load_device("h100"), 48), TrainingSpec(4096, 96), load_framework("megatron")
    )
    layouts = enumerate_space(problem, SearchSpec({"recompute_layers": (-1, 1)})).layouts
    rows = layouts.take(np.random.default_rng(seed).integers(0, len(layouts), 20))
    table = memory.estimate(problem, rows)
    assert memory.peaks(problem, rows) == pytest.approx(table.peak_N)
    for i in range(len(rows)):
        stages = memory.per_stage(problem, rows.take(np.array([i]))).peak_P
        assert float(table.peak_N[i]) == pytest.approx(float(stages.max()))
        assert stages[int(table.stage_N[i])] == pytest.approx(stages.max())


def test_recompute_levels_and_context_parallel_order() -> None:
    problem = problem_of(load_model("llama3-8b"), 8, 8, 8192)
    kept = {
        name: parts(problem, {"dp": 8, "mb": 1, "zero_stage": 1, "op": 8, "recompute": RECOMPUTE.index(name)})[
            "activations"
        ]
        for name in RECOMPUTE
    }
    assert kept["full"] < kept["both"] <= kept["comm"] < kept["none"]
    assert kept["select"] <= kept["none"]
    halved = parts(problem, {"dp": 4, "cp": 2, "mb": 2, "zero_stage": 1, "op": 8})["activations"]
    assert halved == pytest.approx(kept["none"] / 2)


def test_memory_is_flat_once_there_are_as_many_micro_batches_as_stages() -> None:
    problem = problem_of(load_model("llama3-8b"), 4, 1024, 4096)
    peaks = [parts(problem, {"pp": 4, "mb": mb, "zero_stage": 0})["activations"] for mb in (1, 2, 4, 8, 64)]
    assert peaks[0] < peaks[1] < peaks[2] == peaks[3] == peaks[4]


def test_documented_example_of_mixtral_on_ascend() -> None:
    # SAPP-ND documents a peak of 39,474 MB for it, with full recompute and a sharded optimizer.
    model = load_model("mixtral-8x7b")
    assert model.experts is not None
    problem = Problem(
        replace(model, experts=replace(model.experts, capacity_factor=1.1)),
        make_cluster(load_device("a2"), 16),
        TrainingSpec(4096, 128, "fp16"),
        load_framework("mindformers"),
    )
    layout = Layouts.of(
        [
            {"dp": 8, "pp": 2, "ep": 8, "mb": 16, "recompute": RECOMPUTE.index("full"), "zero_stage": 1, "op": 8},
        ]
    )
    assert memory.peaks(problem, layout)[0] / 2**20 == pytest.approx(39_474, rel=0.05)
