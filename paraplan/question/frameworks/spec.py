"""What a training framework does by default: data types, overlap, recompute modules. One YAML file each, beside this.

A user overrides any field in the plan config under ``training.framework_options``.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from paraplan.foundation.records import Amount, Count, Number, Share
from paraplan.question.layouts import SCHEDULES

ElementBytes = Annotated[Count, Field(ge=1, le=8)]
Module = Literal[
    "core_attention",
    "norm",
    "activation",
    "feed_forward_activation",
    "feed_forward",
    "latent_up",
    "attention",
    "every_second_product",
]
Schedule = Annotated[str, Field(pattern=f"^({'|'.join(SCHEDULES)})$")]
Launches = Annotated[Amount, Field(le=1e6)]


@dataclass(frozen=True, slots=True)
class FrameworkSpec:
    """Defaults of one framework; overlap fields are the share of that traffic the framework can hide under compute."""

    name: str
    parameter_bytes: ElementBytes = 2
    gradient_bytes: ElementBytes = 4
    """Bytes of an accumulated gradient element."""
    gradient_reduce_bytes: ElementBytes = 4
    """Bytes of a gradient element on the wire."""
    optimizer_bytes: Annotated[Count, Field(le=64)] = 12
    """Master weight and two moments, bytes a parameter, for Adam."""
    gathers_per_layer: Annotated[Count, Field(ge=1, le=1000)] = 1
    """Collectives in which ZeRO-3 gathers one layer: 1 where its unit is a layer (FSDP), else one a weight matrix."""
    overlap_gradient_reduce: Share = 0.0
    overlap_parameter_gather: Share = 0.0
    overlap_tensor: Share = 0.0
    overlap_tensor_backward: bool = True
    """Whether the column-parallel layers' backward runs its collectives behind its matrix products (Megatron-LM)."""
    overlap_context: Share = 0.0
    overlap_expert: Share = 0.0
    overlap_pipeline: Share = 0.0
    attention_kernel: Literal["flash", "flash2"] = "flash"
    """The tiled kernel: the device vendor's own (cuDNN, CANN), or FlashAttention-2 as PyTorch calls it, which newer
    devices' own kernels outrun."""
    pointwise_passes: Annotated[Number, Field(gt=0, le=1000)] = 1.0
    """Bytes that norms, activations, residuals and dropout move, over those of one fused kernel each."""
    fused_gradient_accumulation: bool = True
    """Whether weight-gradient products add to the gradient buffer themselves."""
    expert_launches: Launches = 100.0
    """Kernels that routing, permutation and exchange of one expert layer launch each way, beyond its products'."""
    expert_launches_each: Launches = 10.0
    """The same for every expert that a rank holds: without a capacity, products and casts go one expert at a time."""
    expert_graphs: bool = False
    """Whether one CUDA graph holds the whole step, expert layers included, on devices whose grouped products read
    their shapes themselves (``grouped_on_device`` of a device): nothing is launched."""
    expert_dispatch: Literal["each", "once-a-node"] = "each"
    """Whether a token bound for several experts of one node crosses the network once for each or once (DeepEP)."""
    pipeline_exchange: Literal["overlapped", "batched"] = "overlapped"
    low_precision_inputs: bool = False
    """Whether linear layers below 16 bits keep their input in that precision for the backward (Transformer Engine:
    the transposed copy that the weight gradient reads), not in 16 bits (torchao)."""
    select_modules: tuple[Module, ...] = ("core_attention",)
    """What the ``select`` recompute level drops and recomputes."""
    comm_modules: tuple[Module, ...] = ("norm",)
    """What the ``comm`` recompute level drops: outputs that a collective plus a cheap operator restore."""
    activation_swap: Literal["any", "alone", "none"] = "none"
    """Whether activations can be swapped to the host: beside anything, only without recomputation and pipeline (so
    Megatron Core's ``cpu_offloading``), or not at all."""
    fused_loss: bool = True
    """Cross entropy computed without a second fp32 copy of the logits."""
    vocab_parallel_loss: bool = True
    """Whether each tensor-parallel rank computes the loss on its share of the vocabulary; else logits are gathered."""
    fragmentation: Share = 0.0
    """Share of activations and buffers that its allocation pattern loses on top of the device type's."""
    reserved_bytes: Annotated[Amount, Field(le=2**44)] = 0.0
    """Memory that the framework's own buffers take on top of the device type's overhead."""
    sequence_parallel: bool = True
    """Whether tp > 1 turns on sequence parallelism unless told otherwise."""
    schedules: tuple[Schedule, ...] = ("1f1b", "interleaved")
    recompute_per_chunk: bool = False
    """Whether every chunk may recompute another number of layers, with all levels (MindFormers' lists)."""
    uneven_stages: bool = True
    """Whether stages may hold different numbers of layers."""
    release: str = ""
    """The release that these values describe, year and month; empty: the newest."""
    source: str = ""
