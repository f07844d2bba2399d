"""What it is trained on: one device type and the hierarchy of links between the devices.

Units: FLOP/s, bytes, bytes per second *per direction per device*, seconds, watts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from paraplan.foundation.records import Amount, Count, Number, Share
from paraplan.question.training import Precision

MOST_DEVICES = 10_000_000

Reached = Annotated[Number, Field(gt=0, le=1)]
"""Share of a nominal figure that is reached."""
Relative = Annotated[Number, Field(gt=0, le=4)]
"""Of one share to another."""
Bandwidth = Annotated[Number, Field(gt=0, le=1e15)]
Seconds = Annotated[Number, Field(ge=0, le=1)]
"""Of one message or one kernel."""


@dataclass(frozen=True, slots=True)
class LinkLevel:
    """One level of the interconnect, inner levels first.

    A group of devices whose ranks all fall in one block of ``span`` consecutive devices talks over this level.
    """

    name: str
    span: Annotated[Count, Field(ge=1)]
    """Devices that one block of this level joins: 8 for a node, 72 for an NVL72 domain; the outermost spans all."""
    bandwidth: Bandwidth
    """Nominal bytes per second, per direction, per device."""
    latency: Seconds
    """Seconds for one message between two neighbours, software included."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (a field to nobody)


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The physical constants of a device type that data sheets do not give; each is a share of a nominal figure.

    Defaults are what untuned devices get; the catalogue's YAML gives fitted values with what they were fitted on.
    ``paraplan calibrate`` writes an overlay of exactly these fields.
    """

    matmul: Reached = 0.80
    """Achievable share of the peak FLOP/s for large matrix products."""
    fp8: Relative = 0.80
    """What 8-bit products reach of :attr:`matmul`, scaling included; above 1 where power limits 16-bit ones."""
    fp4: Relative = 0.60
    """What 4-bit products reach of :attr:`matmul`, scaling included."""
    attention: Reached = 0.60
    """Share of the 16-bit peak that a flash attention kernel's forward reaches."""
    attention_flash2: Reached = 0.50
    """The same for FlashAttention-2, which newer devices' own kernels outrun."""
    memory_bandwidth: Reached = 0.80
    """Achievable share of the memory bandwidth."""
    intra_link: Reached = 0.75
    """Achievable share of the innermost link's bandwidth (bus bandwidth of large collectives)."""
    inter_link: Reached = 0.80
    """Achievable share of the outer links' bandwidth."""
    host_link: Reached = 0.8
    """Achievable share of the bandwidth between device and host memory."""
    contention: Share = 0.1
    """Compute time lost per second of a collective that runs behind it."""
    launch_seconds: Seconds = 4e-6
    """Host and launch time of one kernel that nothing hides."""
    overhead_bytes: Amount = 2.0 * 2**30
    """Memory of the driver, libraries and communicators that no tensor accounts for."""
    fragmentation: Annotated[Share, Field(lt=0.5)] = 0.04
    """Share of the allocated memory that the allocator loses."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One accelerator as the scheduler sees it (one 910C die counts as one device)."""

    name: str
    vendor: str
    peak_flops: Mapping[str, Annotated[Number, Field(ge=1e11, le=1e18)]]
    """Dense peak per precision: keys ``fp32``, ``tf32``, ``bf16``, ``fp16``, ``fp8``, ``nvfp4`` where it has them."""
    memory_bytes: Annotated[Number, Field(ge=2**30, le=2**44)]
    memory_bandwidth: Annotated[Number, Field(ge=1e10, le=1e15)]
    devices_per_node: Annotated[Count, Field(ge=1)]
    levels: tuple[LinkLevel, ...]
    aliases: tuple[str, ...] = ()
    sm_count: Count = 0
    """Compute units that matrix-product tiles are dealt over (SMs, or AI cores)."""
    grouped_on_device: bool = False
    """Whether its libraries' grouped products read their sizes from device memory, so that expert layers whose token
    counts change from step to step can still be captured in a graph."""
    l2_bytes: Amount = 0.0
    host_bandwidth: Annotated[Amount, Field(le=1e15)] = 0.0
    """Nominal bytes per second between the device and host memory, per direction; 0: nothing can be swapped."""
    power_watts: Amount = 0.0
    price_per_hour: Amount = 0.0
    """In US dollars; 0: unknown."""
    efficiency: Efficiency = field(default_factory=Efficiency)
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Field name to where its value was read."""

    def computes(self, precision: Precision) -> bool:
        """Whether it has a rate for this precision: one for every 8-bit recipe; single precision is everywhere."""
        return precision == "fp32" or ("fp8" if "fp8" in precision else precision) in self.peak_flops


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Devices of one type and how they are joined."""

    device: DeviceSpec
    devices: int
    memory_budget: float
    """Bytes a device may use; at most ``device.memory_bytes``."""
    levels: tuple[LinkLevel, ...]
    """The device's levels, with the cluster's own network where the user gave it."""
