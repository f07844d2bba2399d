"""Seconds of kernels on one device: matrix products by shape, attention, memory-bound operators.

A product of ``m x k`` by ``k x n`` is cut in tiles that are dealt over the device's compute units in waves (NVIDIA,
"Matrix multiplication background user's guide", tile and wave quantisation). The tile is the best of those that the
libraries ship. Each tile pays a prologue along k. The result is held against the time its bytes need (roofline).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paraplan.foundation.arrays import Array
from paraplan.question.clusters.spec import DeviceSpec
from paraplan.question.training import Precision, below_16_bits

TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.8), (64, 128, 0.8), (64, 64, 0.6))
"""Tile rows, columns, and the share of the large tile's rate that a smaller one reaches (operand reuse)."""

SCALING_RATE = {"fp8-rowwise": 0.53}
"""Rate of 8-bit products with a scale for each row and column, whose kernel applies them in its epilogue and promotes
partial sums, over one scale a tensor (fitted on TorchTitan's paired runs; all other scalings count as one)."""

PROLOGUE_K = 100
"""Filling and draining a tile's pipeline costs as much as this many elements of k (fitted on the A100 rows)."""


@dataclass(frozen=True, slots=True)
class Product:
    """Seconds of one linear layer, shape (U,)."""

    forward: Array
    input_gradient: Array
    weight_gradient: Array

    @property
    def backward(self) -> Array:
        return self.input_gradient + self.weight_gradient

    def __add__(self, other: "Product") -> "Product":
        return Product(
            self.forward + other.forward,
            self.input_gradient + other.input_gradient,
            self.weight_gradient + other.weight_gradient,
        )


@dataclass(frozen=True, slots=True)
class Kernels:
    """What one device reaches in one precision."""

    device: DeviceSpec
    precision: Precision
    accumulation_bytes: float = 4.0
    """Bytes an element that adding a weight gradient to its buffer moves beyond the product's own: 4 where the product
    itself adds in fp32 (Megatron-LM, gradient accumulation fusion), else another kernel reads the 16-bit gradient and
    reads and writes the buffer."""

    def peak(self, linear: bool) -> float:
        """Achievable FLOP/s of large products: of linear layers, or of what stays in 16 bits (attention, head)."""
        device, efficiency = self.device, self.device.efficiency
        if linear and self.precision == "nvfp4" and "nvfp4" in device.peak_flops:
            return device.peak_flops["nvfp4"] * efficiency.matmul * efficiency.fp4
        if linear and below_16_bits(self.precision) and "fp8" in device.peak_flops:
            return device.peak_flops["fp8"] * efficiency.matmul * efficiency.fp8 * SCALING_RATE.get(self.precision, 1.0)
        if self.precision == "fp32":
            return device.peak_flops.get("tf32", device.peak_flops.get("fp32", 0.0)) * efficiency.matmul
        half = device.peak_flops.get("fp16" if self.precision == "fp16" else "bf16") or device.peak_flops["fp16"]
        return half * efficiency.matmul

    def bytes_seconds(self, moved: npt.ArrayLike) -> Array:
        """Seconds to move ``moved`` bytes to or from device memory."""
        efficiency = self.device.efficiency
        return np.asarray(moved, dtype=np.float64) / (self.device.memory_bandwidth * efficiency.memory_bandwidth)

    def matmul(self, m: npt.ArrayLike, k: npt.ArrayLike, n: npt.ArrayLike, batch: npt.ArrayLike, linear: bool) -> Array:
        """Seconds of ``batch`` products ``m x k`` by ``k x n`` in one (grouped) kernel."""
        m, k, n, batch = (np.maximum(np.asarray(x, dtype=np.float64), 1.0) for x in (m, k, n, batch))
        units = max(self.device.sm_count, 1)
        best = np.full(np.broadcast_shapes(m.shape, k.shape, n.shape, batch.shape), np.inf)
        for rows, columns, rate in TILES:
            tiles = np.ceil(m / rows) * np.ceil(n / columns) * batch
            whole = np.ceil(tiles / units) * units
            best = np.minimum(best, whole * (rows * columns / rate))
        element = (1 if self.precision != "nvfp4" else 0.5) if linear and below_16_bits(self.precision) else 2
        moved = (m * k + k * n) * batch * element + m * n * batch * 2
        seconds: Array = (
            np.maximum(2 * best * (k + PROLOGUE_K) / self.peak(linear), self.bytes_seconds(moved))
            + self.device.efficiency.launch_seconds
        )
        return seconds

    def linear(
        self, m: npt.ArrayLike, k: npt.ArrayLike, n: npt.ArrayLike, batch: npt.ArrayLike = 1.0, *, wide: bool = False
    ) -> Product:
        """A linear layer of ``m`` tokens from ``k`` to ``n`` features; ``wide`` keeps it in 16 bits (router, head).

        Below 16 bits each operand is cast once per use (read 2 bytes, write 1 for the rows and 1 for the columns);
        the weight gradient accumulates into a buffer (:attr:`accumulation_bytes`).
        """
        low = below_16_bits(self.precision) and not wide
        m, k, n, batch = (np.asarray(x, dtype=np.float64) for x in (m, k, n, batch))
        slow = 1 / np.minimum(_alignment_rate(k), _alignment_rate(n))
        launch = self.device.efficiency.launch_seconds
        cast_in = self.bytes_seconds(4 * m * k * batch) + launch if low else 0.0
        cast_out = self.bytes_seconds(4 * m * n * batch) + launch if low else 0.0
        return Product(
            slow * self.matmul(m, k, n, batch, not wide) + cast_in,
            slow * self.matmul(m, n, k, batch, not wide) + cast_out,
            slow * self.matmul(k, m, n, batch, not wide) + self.bytes_seconds(self.accumulation_bytes * k * n * batch),
        )

    def attention(
        self, flops: npt.ArrayLike, scores: npt.ArrayLike, kernel: str, width: int, length: float
    ) -> tuple[Array, Array]:
        """Forward and backward seconds of the attention core.

        Args:
            flops: Of the forward with the causal mask taken into account.
            scores: Elements of the full score matrix, that a kernel without tiling computes and writes.
            kernel: ``flash`` or ``flash2``, a tiled kernel (FlashAttention-2, arXiv:2307.08691, section 3: the
                backward recomputes the scores, 2.5 times the forward's FLOPs); ``unfused``, plain products over the
                full square with softmax, mask and dropout passing over the scores in memory.
            width: Of one head.
            length: Tokens of a sequence.
        """
        flops = np.asarray(flops, dtype=np.float64)
        scores = np.asarray(scores, dtype=np.float64)
        efficiency = self.device.efficiency
        rate = self.peak(False) / efficiency.matmul
        launch = efficiency.launch_seconds
        if kernel != "unfused":
            if kernel == "flash":
                rate = rate * efficiency.attention * length / (length + MASKED_LENGTH)
            else:
                rate = rate * efficiency.attention_flash2
            rate = rate * min(1.0, (128 + SOFTMAX_WIDTH) / 128 * width / (width + SOFTMAX_WIDTH))
            return flops / rate + launch, 2.5 * flops / (rate * FLASH_BACKWARD) + 2 * launch
        products = 2 * flops / (rate * efficiency.matmul * UNFUSED_PRODUCTS * (1.0 if width % 8 == 0 else HEAD_ODD))
        return (
            products + self.bytes_seconds(17 * scores) + 5 * launch,
            2 * products + self.bytes_seconds(21 * scores) + 6 * launch,
        )


def _alignment_rate(width: Array) -> Array:
    """Rate of products over features of this width against one that fills whole cache lines.

    Tensor cores read 128 bytes, 64 elements of 16 bits, at a time (NVIDIA, "Matrix multiplication background user's
    guide", section 2.1); widths that no cache line divides lose accesses. The rate at multiples of 8 is fitted on
    the 14,400-wide models of BigScience's chronicles, those between are interpolated.
    """
    whole = np.floor(width)
    rate = np.full(np.shape(width), ALIGNMENT_RATE[0][1])
    for multiple, reached in ALIGNMENT_RATE[1:]:
        rate = np.where(whole % multiple == 0, reached, rate)
    return rate


ALIGNMENT_RATE = ((1, 0.5), (8, 0.75), (16, 0.85), (32, 0.93), (64, 1.0))

HEAD_ODD = 0.08
"""Rate of batched products over heads whose width 8 does not divide, which tensor cores cannot read directly (NVIDIA,
as above), over that of others; fitted on the BigScience rows with heads of 150 and 450."""

SOFTMAX_WIDTH = 32
"""The softmax of one score takes a tiled kernel as long as this many more elements of a head: heads of 64 reach five
sixths of the rate of 128 (FlashAttention-2, figures 4 and 5; FlashAttention-3, arXiv:2407.08608, figure 5)."""

MASKED_LENGTH = 700
"""The vendors' causal kernels take as long as if sequences had this many more tokens: large blocks on the diagonal are
computed whole, and rows end at different times (FlashAttention-3, arXiv:2407.08608, figure 5; held against the runs of
4,096 to a million tokens in runs.csv). FlashAttention-2's smaller blocks show none of it from 2,048 to 65,536."""

FLASH_BACKWARD = 0.8
"""Rate of the flash kernel's backward over its forward's (FlashAttention-2, figures 4 to 6)."""

UNFUSED_PRODUCTS = 0.6
"""Rate of batched products over one head's small dimensions, over that of large products."""
