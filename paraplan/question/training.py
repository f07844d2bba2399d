"""How it is trained: everything about a step that is neither the model, the cluster nor the layout."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from paraplan.foundation.records import Count, Number

Precision = Literal["fp32", "fp16", "bf16", "fp8", "fp8-cs", "fp8-tensorwise", "fp8-rowwise", "mxfp8", "nvfp4"]
AttentionKernel = Literal["flash", "unfused"]
Optimizer = Literal["adamw", "adam", "sgd", "muon"]


def below_16_bits(precision: Precision) -> bool:
    """Whether linear layers compute in 8 or 4 bits."""
    return precision.startswith(("fp8", "mxfp8", "nvfp4"))


@dataclass(frozen=True, slots=True)
class TrainingSpec:
    """One optimizer step of ``global_batch`` sequences of ``sequence_length`` tokens."""

    sequence_length: Annotated[Count, Field(ge=1, le=100_000_000)]
    global_batch: Annotated[Count, Field(ge=1, le=100_000_000)]
    precision: Precision = "bf16"
    optimizer: Optimizer = "adamw"
    attention_kernel: AttentionKernel = "flash"
    expert_imbalance: Annotated[Number, Field(ge=1, le=10_000)] = 1.0
    """Tokens of the busiest rank's experts over the even share, for models without a capacity."""
    fused_norm: bool = True
    """Norms (and their fp32 intermediates) computed by one kernel, as Apex and Transformer Engine do."""
    gradient_bytes: Annotated[Count, Field(ge=1, le=8)] | None = None
    """Bytes of an accumulated gradient element; None: the framework's own."""
    tokens: Annotated[Number, Field(gt=0, le=1e18)] | None = None
    """Tokens to train on, for the time to train; None: not asked."""
