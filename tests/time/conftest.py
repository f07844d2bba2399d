"""A device with round numbers, so that a step can be added up by hand."""

from dataclasses import replace

import pytest

from paraplan.question.clusters.spec import ClusterSpec, DeviceSpec, Efficiency, LinkLevel
from paraplan.question.frameworks import load_framework
from paraplan.question.models.spec import LayerGroup, ModelSpec
from paraplan.question.problem import Problem
from paraplan.question.training import TrainingSpec


@pytest.fixture
def device() -> DeviceSpec:
    """1e14 FLOP/s reached by every product, memory so fast that bytes cost nothing, links of 1e11 and 1e10 bytes/s."""
    return DeviceSpec(
        name="round",
        vendor="none",
        peak_flops={"bf16": 1e14},
        memory_bytes=2**40,
        memory_bandwidth=1e30,
        devices_per_node=8,
        levels=(LinkLevel("inside", 8, 1e11, 0.0), LinkLevel("between", 1 << 20, 1e10, 0.0)),
        sm_count=1,
        efficiency=Efficiency(
            matmul=1.0,
            attention=1.0,
            attention_flash2=1.0,
            memory_bandwidth=1.0,
            intra_link=1.0,
            inter_link=1.0,
            contention=0.0,
            launch_seconds=0.0,
        ),
    )


@pytest.fixture
def model() -> ModelSpec:
    """Four layers of GPT kind, 1024 wide."""
    return ModelSpec(
        name="round",
        model_type="gpt2",
        hidden=1024,
        heads=8,
        kv_heads=8,
        head_dim=128,
        ffn_hidden=4096,
        vocab=12800,
        groups=(LayerGroup("dense", 4),),
        gated=False,
        learned_positions=1024,
    )


@pytest.fixture
def problem(device: DeviceSpec, model: ModelSpec) -> Problem:
    """Eight sequences of 1024 tokens a step on 16 devices."""
    cluster = ClusterSpec(device, 16, device.memory_bytes, device.levels)
    return Problem(model, cluster, TrainingSpec(1024, 8), replace(load_framework("megatron"), select_modules=()))
