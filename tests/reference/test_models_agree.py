"""The vectorised models agree with the plain ones on random legal layouts of every shipped model."""

from dataclasses import replace

import numpy as np
import pytest

from paraplan import memory
from paraplan import time as performance
from paraplan.question.clusters import load_device, make_cluster
from paraplan.question.frameworks import load_framework
from paraplan.question.layouts import SCHEDULES
from paraplan.question.models.catalogue import load_model, model_names
from paraplan.question.problem import Problem
from paraplan.question.training import TrainingSpec
from paraplan.search import SearchSpec
from paraplan.search.space import blocks_of, concatenate
from tests.reference.memory import peak
from tests.reference.time import step

QUESTIONS = (
    ("a100", 96, "megatron", "bf16", 192),
    ("h100", 256, "nemo", "fp8", 512),
    ("gb200", 288, "torchtitan", "mxfp8", 576),
    ("a2", 64, "mindformers", "fp16", 128),
    ("h800", 128, "deepspeed", "bf16", 256),
    ("b200", 64, "eager", "nvfp4", 128),
    ("gb300", 72, "nemo", "mxfp8", 144),
)
"""Device, number, framework, precision, global batch; every model is asked each."""

OPEN = {
    "tp": (1, 2, 3, 8, 16),
    "cp": (1, 2, 4),
    "pp": (1, 2, 3, 4, 8, 16),
    "vpp": (1, 2, 3),
    "mbs": (1, 2),
    "recompute": (0, 1, 2, 3, 4),
    "recompute_layers": (-1, 1, 2),
    "cp_kind": None,
    "swap_act": None,
    "swap_os": None,
}


@pytest.mark.parametrize("name", model_names())
def test_blocks_agree_with_one_layout_at_a_time(name: str) -> None:
    rng = np.random.default_rng(len(name))
    for device, count, framework, precision, batch in QUESTIONS:
        model = load_model(name)
        if model.experts and framework == "mindformers":
            model = replace(model, experts=replace(model.experts, capacity_factor=1.1))
        problem = Problem(
            model,
            make_cluster(load_device(device), count),
            TrainingSpec(
                4096,
                batch,
                precision,  # type: ignore[arg-type]
                attention_kernel="unfused" if framework == "deepspeed" else "flash",
                expert_imbalance=1.3 if framework == "deepspeed" else 1.0,
                fused_norm=framework != "eager",
            ),
            # Every schedule and swap, whatever the framework runs.
            replace(load_framework(framework), schedules=SCHEDULES, activation_swap="any"),
        )
        blocks = list(blocks_of(problem, SearchSpec(OPEN)))
        drawn = [block.take(rng.integers(0, len(block), 40 // len(blocks) + 1)) for block in blocks]
        chosen = concatenate(drawn)
        peaks, seconds = memory.peaks(problem, chosen), performance.step_times(problem, chosen)
        assert memory.estimate(problem, chosen).peak_N == pytest.approx(peaks, rel=1e-12)
        for i in range(len(chosen)):
            row = chosen.row(i)
            assert peaks[i] == pytest.approx(peak(problem, row), rel=1e-9), (device, framework, row)
            assert seconds[i] == pytest.approx(step(problem, row), rel=1e-9), (device, framework, row)
