"""Unusual clusters, batches and shapes give the right space or a clear reason; what must hold for every search."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paraplan import memory
from paraplan import time as performance
from paraplan.cli import main
from paraplan.foundation.errors import InputError, NoAnswerError
from paraplan.question.clusters import load_device, make_cluster
from paraplan.question.frameworks import load_framework
from paraplan.question.layouts import SCHEDULES
from paraplan.question.models import load_model
from paraplan.question.models.spec import LayerGroup
from paraplan.question.problem import Problem
from paraplan.question.training import TrainingSpec
from paraplan.search import SearchSpec, enumerate_space, search
from paraplan.search.explain import explain
from paraplan.search.rules import rules


def problem_of(model: str, device: str, devices: int, batch: int, sequence: int = 4096) -> Problem:
    return Problem(
        load_model(model),
        make_cluster(load_device(device), devices),
        TrainingSpec(sequence, batch),
        load_framework("megatron"),
    )


def values(problem: Problem, spec: SearchSpec, name: str) -> set[int]:
    return {int(x) for x in np.unique(getattr(enumerate_space(problem, spec).layouts, name))}


def test_stages_of_96_layers_need_not_be_powers_of_two() -> None:
    problem = problem_of("gpt3-175b", "a100", 1536, 1536, 2048)
    stages = values(problem, SearchSpec({"tp": (8,), "cp": (1,), "mbs": (1,)}), "pp")
    # 1,536 / 8 = 192 devices for dp and pp: every divisor up to the 96 layers.
    assert stages == {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96}


def test_heads_decide_the_tensor_degrees_of_a_model_with_52_heads() -> None:
    shape = replace(load_model("llama3-8b"), heads=52, kv_heads=52, hidden=6656, ffn_hidden=17_888)
    problem = replace(problem_of("llama3-8b", "a100", 52 * 4, 416), model=shape)
    # 52 = 4·13 heads and 17,888 = 2^5·13·43.
    assert values(problem, SearchSpec({"cp": (1,), "mbs": (1,), "pp": (1,)}), "tp") == {1, 2, 4, 13, 26, 52}


def test_three_super_pods_of_24_nodes_are_used_whole() -> None:
    problem = problem_of("llama2-70b", "a3", 3 * 24 * 16, 1152)
    found = search(problem, SearchSpec()).ranked.layouts
    assert (found.dp * found.tp * found.cp * found.pp == 1152).all()
    assert (found.dp % 3 == 0).any() or (found.pp % 3 == 0).any()


def test_one_device_has_one_degree_of_everything() -> None:
    layouts = enumerate_space(problem_of("llama3-8b", "h100", 1, 4), SearchSpec()).layouts
    for name in ("dp", "tp", "cp", "pp", "ep", "op"):
        assert (getattr(layouts, name) == 1).all()
    assert set(layouts.zero_stage) == {0}
    assert set(layouts.mbs * layouts.mb) == {4}


def test_tensor_degree_of_one_alone_with_experts_spread() -> None:
    problem = problem_of("mixtral-8x7b", "h100", 64, 64)
    layouts = enumerate_space(problem, SearchSpec({"tp": (1,)})).layouts
    assert set(layouts.tp) == {1}
    assert {1, 2, 4, 8} == set(layouts.ep.tolist())


def test_experts_that_the_devices_do_not_divide_keep_their_common_degrees() -> None:
    # 60 experts on 48 devices of one stage: ep divides both.
    model = load_model("qwen3-30b-a3b")
    assert model.experts is not None
    sixty = replace(model, experts=replace(model.experts, count=60))
    problem = replace(problem_of("qwen3-30b-a3b", "h100", 48, 48), model=sixty)
    assert values(problem, SearchSpec({"tp": (1,), "cp": (1,), "pp": (1,)}), "ep") == {1, 2, 3, 4, 6, 12}
    broken = explain(problem, SearchSpec(), {"tp": 1, "ep": 5}, None).broken
    assert [rule.name for rule in broken] == ["experts over devices"]


def test_prime_batch_leaves_one_replica() -> None:
    assert values(problem_of("llama3-8b", "h100", 8, 251), SearchSpec(), "dp") == {1}


def test_sequence_that_nothing_divides_has_no_context_parallelism() -> None:
    assert values(problem_of("llama3-8b", "h100", 8, 8, sequence=4099), SearchSpec({"cp_kind": None}), "cp") == {1}


def test_nothing_legal_offers_the_nearest_relaxation() -> None:
    problem = problem_of("llama3-8b", "h100", 8, 8)
    with pytest.raises(InputError, match=r"left by dropping the constraint 'tp \* pp == 3'$"):
        search(problem, SearchSpec(constraints=("tp * pp == 3", "dp > 1")))
    with pytest.raises(InputError, match="left by other values of dp than 8, or by other values of pp than 4"):
        search(problem, SearchSpec({"dp": (8,), "pp": (4,)}))
    with pytest.raises(InputError, match="left by other values of dp than 8"):
        search(replace(problem, training=replace(problem.training, global_batch=7)), SearchSpec({"dp": (8,)}))


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ({"op": (3,)}, "optimizer sharding"),
        ({"recompute_layers": (0,)}, "recomputed layers"),
        ({"ep": (2,)}, "ep needs experts"),
        ({"tp": (16,)}, "devices"),
        ({"schedule": (SCHEDULES.index("zb-v"),)}, "schedule of the framework"),
    ],
)
def test_nothing_legal_names_the_rule_that_binds(asked: dict[str, tuple[int, ...]], rule: str) -> None:
    problem = problem_of("llama3-8b", "h100", 8, 16)
    reason = next(one.reason for one in rules(problem, SearchSpec()) if one.name == rule)
    told = rf"every rule: '{rule}' removed [\d,]+; needed: {re.escape(reason)}; layouts would be left by other values"
    with pytest.raises(InputError, match=told):
        search(problem, SearchSpec(asked))


@pytest.mark.parametrize(
    ("model", "devices", "enough"), [("mixtral-8x22b", 16, 32), ("gpt3-175b", 16, 64), ("deepseek-v3", 64, 256)]
)
def test_nothing_fits_advises_devices_that_do(model: str, devices: int, enough: int) -> None:
    with pytest.raises(NoAnswerError, match=rf"help: more devices: {enough} \(\d+ times as many\)$"):
        search(problem_of(model, "h100", devices, 16), SearchSpec())
    assert search(problem_of(model, "h100", enough, 16), SearchSpec()).fitting


def test_nothing_fits_advises_a_budget_that_does() -> None:
    problem = problem_of("llama3-8b", "h100", 8, 16)
    tight = replace(problem, cluster=replace(problem.cluster, memory_budget=10e9))
    with pytest.raises(NoAnswerError) as refused:
        search(tight, SearchSpec(reserve_bytes=2.0**30))
    advised = re.search(r"a memory budget of ([\d.]+) GiB a device$", str(refused.value))
    assert advised is not None
    wider = replace(problem, cluster=replace(problem.cluster, memory_budget=float(advised[1]) * 2**30))
    assert search(wider, SearchSpec(reserve_bytes=2.0**30)).fitting


def test_nothing_fits_advises_several_changes_where_one_is_not_enough() -> None:
    problem = problem_of("llama3-8b", "h100", 8, 16)
    tight = replace(problem, cluster=replace(problem.cluster, memory_budget=20 * 2.0**30))
    with pytest.raises(NoAnswerError, match=r"help: dropping several restrictions of the search at once$"):
        search(tight, SearchSpec({"recompute": (0,), "tp": (1,), "mbs": (16,), "pp": (2,)}))


def test_batch_alone_in_the_way_names_the_nearest_one() -> None:
    # One stage of replicas only: torchtitan-like data parallelism over 8 devices needs a multiple of 8.
    small = replace(load_model("llama3-8b"), heads=1, kv_heads=1, groups=(LayerGroup("dense", 1),))
    problem = replace(problem_of("llama3-8b", "h100", 8, 13, sequence=4099), model=small)
    with pytest.raises(InputError, match=r"left by a global batch of (8|16)$"):
        search(problem, SearchSpec())


def test_thirty_layers_on_four_stages_stay_thirty() -> None:
    shape = replace(load_model("llama3-8b"), groups=(LayerGroup("dense", 30),))
    problem = replace(problem_of("llama3-8b", "h100", 8, 16), model=shape)
    found = search(problem, SearchSpec({"pp": (4,), "vpp": (1,)})).ranked
    assert len(found)
    per_stage = memory.per_stage(problem, found.layouts.take(np.array([0])))
    parameters = per_stage.components["parameters"]
    # Stages of 7 and 8 layers, none dropped: the two middle ones hold the more.
    assert parameters[1] > parameters[0] - 2 * 128_256 * 4096 * 2
    assert len(parameters) == 4


def test_uneven_stages_are_found_where_embedding_and_head_weigh(tmp_path: Path) -> None:
    # 80 layers on 8 stages in chunks of two: an even split would leave the head beside as many layers as the others.
    from paraplan.balance import BalanceSpec, balance, describe

    problem = problem_of("llama3-70b", "h100", 64, 128, 8192)
    layouts = enumerate_space(
        problem,
        SearchSpec(
            {
                "tp": (4,),
                "cp": (1,),
                "pp": (8,),
                "vpp": (5,),
                "mbs": (1,),
                "zero_stage": (1,),
                "sp": (1,),
                "recompute": (0,),
            }
        ),
    ).layouts
    assert len(layouts)
    pipeline = describe(problem, layouts.take(np.array([0])), BalanceSpec(effort=0, time_limit_s=20))
    even = replace(pipeline, spec=replace(pipeline.spec, equal_chunks=True))
    free, same = balance(pipeline), balance(even)
    assert free.makespan < 0.98 * same.makespan
    assert sum(map(sum, free.layers)) == 80


@pytest.mark.parametrize("devices", [768, 1536])
def test_devices_that_are_no_power_of_two(devices: int) -> None:
    found = search(problem_of("llama3-70b", "h100", devices, devices), SearchSpec())
    assert found.fitting > 0
    assert any(int(row) % 3 == 0 for row in found.ranked.layouts.dp * found.ranked.layouts.pp)


def test_every_listed_layout_satisfies_every_rule() -> None:
    for model, devices in (("llama3-8b", 24), ("deepseek-v2-lite", 48)):
        problem = problem_of(model, "h100", devices, 96)
        spec = SearchSpec({"recompute_layers": None, "cp_kind": None, "swap_os": None}, constraints=("tp <= 8",))
        layouts = enumerate_space(problem, spec).layouts
        columns = {name: getattr(layouts, name) for name in type(layouts).__slots__}
        for rule in rules(problem, spec):
            assert rule.holds(columns).all(), rule.name


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["llama3-8b", "mixtral-8x7b", "deepseek-v2-lite", "gpt3-175b"]),
    st.sampled_from(["a100", "h100", "gb200", "a2"]),
    st.integers(0, 10_000),
)
def test_better_hardware_never_slows_a_layout(model: str, device: str, seed: int) -> None:
    problem = problem_of(model, device, 48, 96)
    problem = replace(problem, framework=replace(problem.framework, activation_swap="any"))
    layouts = enumerate_space(problem, SearchSpec({"mbs": (1, 2), "cp_kind": None, "swap_act": None})).layouts
    chosen = layouts.take(np.random.default_rng(seed).integers(0, len(layouts), 200))
    before = performance.step_times(problem, chosen)
    device_spec = problem.cluster.device
    doubled = {name: 2 * peak for name, peak in device_spec.peak_flops.items()}
    links = tuple(
        replace(level, bandwidth=2 * level.bandwidth, latency=level.latency / 2) for level in problem.cluster.levels
    )
    better = {
        "compute": replace(problem.cluster, device=replace(device_spec, peak_flops=doubled)),
        "memory": replace(
            problem.cluster, device=replace(device_spec, memory_bandwidth=2 * device_spec.memory_bandwidth)
        ),
        "links": replace(problem.cluster, levels=links),
    }
    for name, cluster in better.items():
        after = performance.step_times(replace(problem, cluster=cluster), chosen)
        # Faster compute hides less of what it used to hide, never more than it gains.
        assert (after <= before * (1 + 1e-9)).all(), name
    # Twice the compute, memory bandwidth and links, and half of every latency: half the time.
    launches = replace(device_spec.efficiency, launch_seconds=device_spec.efficiency.launch_seconds / 2)
    everything = replace(
        problem.cluster,
        levels=links,
        device=replace(
            device_spec,
            peak_flops=doubled,
            memory_bandwidth=2 * device_spec.memory_bandwidth,
            host_bandwidth=2 * device_spec.host_bandwidth,
            efficiency=launches,
        ),
    )
    assert performance.step_times(replace(problem, cluster=everything), chosen) == pytest.approx(before / 2, rel=1e-9)


def test_permuted_values_give_the_same_ranking() -> None:
    problem = problem_of("mixtral-8x7b", "h100", 64, 128)
    one = search(problem, SearchSpec({"tp": (1, 2, 4, 8), "pp": (1, 2, 4), "ep": (1, 2, 4, 8), "mbs": (1, 2)}))
    other = search(problem, SearchSpec({"mbs": (2, 1), "ep": (8, 1, 4, 2), "pp": (4, 1, 2), "tp": (2, 8, 1, 4)}))
    assert [one.ranked.layouts.row(i) for i in range(len(one.ranked))] == [
        other.ranked.layouts.row(i) for i in range(len(other.ranked))
    ]


def test_model_without_a_sequence_limit_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "model: bloom-176b\ncluster: {device: a100, devices: 384}\n"
        "training: {sequence_length: 2048, global_batch: 2048, framework: deepspeed}\n"
    )
    assert main(["nd", "-y", str(plan), "-t", "1"]) == 0
    assert "layouts satisfy every rule" in capsys.readouterr().out


def test_long_search_shows_progress(capsys: pytest.CaptureFixture[str]) -> None:
    from paraplan.cli.nd import _Progress

    seconds = iter([0.0, 1.0, 3.0, 3.05, 4.0])
    progress = _Progress()
    progress.clock = lambda: next(seconds)
    progress.began = progress.shown = progress.clock()
    for seen in (10, 20, 30, 40):
        progress(seen * 1000, seen, 1.5)
    progress.close()
    told = capsys.readouterr().err
    # Nothing in the first two seconds, then at most five lines a second.
    assert told.count("layouts") == 2
    assert "20,000 layouts" in told
    assert "30,000" not in told
    assert told.endswith("\n")
