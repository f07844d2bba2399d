"""The device catalogue: one YAML file a device; a user's own device is one more."""

import difflib
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from paraplan.clusters.spec import ClusterSpec, DeviceSpec
from paraplan.documents import read_mapping
from paraplan.errors import InputError
from paraplan.records import build

_FOLDER = Path(__file__).parent / "devices"
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4")


def device_names() -> list[str]:
    """Names of the shipped devices, without aliases."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


@cache
def _shipped() -> dict[str, DeviceSpec]:
    """Every shipped device under its name and aliases."""
    by_name: dict[str, DeviceSpec] = {}
    for name in device_names():
        device = read_device(_FOLDER / f"{name}.yaml")
        for alias in (device.name, *device.aliases):
            by_name[alias] = device
    return by_name


def load_device(name_or_path: str, beside: Path | None = None) -> DeviceSpec:
    """A device by name or alias, or from a YAML file.

    Args:
        name_or_path: A shipped name in either case, or the path of a device file.
        beside: The file that names it; relative paths are also tried from its folder and from ``../clusters``.

    Raises:
        InputError: unknown (names the known ones), or the file does not describe a possible device.
    """
    known = _shipped()
    key = name_or_path.lower().replace("_", "-").replace(" ", "-")
    if key in known:
        return known[key]
    if name_or_path.endswith((".yaml", ".yml", ".json")):
        folders = [Path(), *([beside.parent, beside.parent.parent / "clusters"] if beside else [])]
        for folder in folders:
            if (folder / name_or_path).is_file():
                return read_device(folder / name_or_path)
        raise InputError(f"{name_or_path}: no such device file")
    close = difflib.get_close_matches(key, list(known), 1, 0.6)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise InputError(
        f"device: {name_or_path!r} found, a device file or one of {', '.join(device_names())} is needed{hint}"
    )


def read_device(path: Path) -> DeviceSpec:
    """Read and check one device file.

    Raises:
        InputError: unknown keys, wrong types, or values no device can have.
    """
    device = build(DeviceSpec, {"name": path.stem} | dict(read_mapping(path)), str(path))
    _check(device, str(path))
    return device


def make_cluster(
    device: DeviceSpec,
    devices: int,
    nic_bytes_per_s: float | None = None,
    memory_budget: float | None = None,
    where: str = "cluster",
) -> ClusterSpec:
    """A cluster of one device type.

    Args:
        device: The device type.
        devices: How many.
        nic_bytes_per_s: The network between nodes, bytes per second per direction *per device*, where it is not the
            device's usual one.
        memory_budget: Bytes a device may use; None: all of its memory.
        where: File and field, for messages.

    Raises:
        InputError: no devices, a budget above the device's memory, or a network faster than the links inside a node.
    """
    if devices < 1:
        raise InputError(f"{where}.devices: {devices} found, at least 1 is needed")
    budget = device.memory_bytes if memory_budget is None else memory_budget
    if not 0 < budget <= device.memory_bytes:
        raise InputError(
            f"{where}.memory_budget_gib: {budget / 2**30:g} found, more than 0 and at most the"
            f" {device.memory_bytes / 2**30:g} GiB of {device.name} is allowed"
        )
    levels = device.levels
    if nic_bytes_per_s is not None:
        levels = (*levels[:-1], replace(levels[-1], bandwidth=nic_bytes_per_s))
        _check_levels(replace(device, levels=levels), f"{where}.nic_gb_per_s_per_device")
    levels = (*(replace(level, span=_used_span(device, level.span, devices)) for level in levels[:-1]), levels[-1])
    return ClusterSpec(device, devices, budget, levels)


def _used_span(device: DeviceSpec, span: int, devices: int) -> int:
    """Devices of one block that a job takes.

    A block of several nodes (an NVLink domain of 72, a super-pod) is allotted in whole nodes, equal parts of every
    block, so that 256 devices are 4 x 64 and not 3 x 72 and 40 (Slurm's ``--segment``).
    """
    node = device.devices_per_node
    if span <= node:
        return span
    return max((part for part in range(node, min(span, devices) + 1, node) if devices % part == 0), default=span)


def overlaid(device: DeviceSpec, overlay: dict[str, Any], where: str) -> DeviceSpec:
    """``device`` with the calibrated efficiencies of an overlay (as ``paraplan calibrate`` writes it)."""
    from dataclasses import asdict

    from paraplan.clusters.spec import Efficiency

    efficiency = build(Efficiency, asdict(device.efficiency) | overlay, where, "efficiency.")
    changed = replace(device, efficiency=efficiency)
    _check(changed, where)
    return changed


def _check(device: DeviceSpec, where: str) -> None:
    for precision, peak in device.peak_flops.items():
        if precision not in PRECISIONS:
            raise InputError(f"{where}: peak_flops.{precision}: unknown precision; allowed: {', '.join(PRECISIONS)}")
        if not 1e11 <= peak <= 1e18:
            raise InputError(
                f"{where}: peak_flops.{precision}: {peak:g} found, FLOP/s between 1e11 and 1e18 are needed"
            )
    if not device.peak_flops:
        raise InputError(f"{where}: peak_flops: empty, at least one precision is needed")
    for field, low, high in (("memory_bytes", 2**30, 2**44), ("memory_bandwidth", 1e10, 1e15)):
        value = getattr(device, field)
        if not low <= value <= high:
            raise InputError(f"{where}: {field}: {value:g} found, between {low:g} and {high:g} is needed")
    if device.devices_per_node < 1:
        raise InputError(f"{where}: devices_per_node: {device.devices_per_node} found, at least 1 is needed")
    efficiency = device.efficiency
    for field in (
        "matmul",
        "attention",
        "attention_flash2",
        "memory_bandwidth",
        "intra_link",
        "inter_link",
    ):
        value = getattr(efficiency, field)
        if not 0 < value <= 1:
            raise InputError(
                f"{where}: efficiency.{field}: {value:g} found, a share of more than 0 and at most 1 is needed"
            )
    for field in ("fp8", "fp4"):
        if not 0 < getattr(efficiency, field) * efficiency.matmul <= 1:
            raise InputError(
                f"{where}: efficiency.{field}: {getattr(efficiency, field):g} found, more than 0 is needed and at most"
                f" {1 / efficiency.matmul:.3g}, which with matmul is the whole peak"
            )
    if not 0 <= efficiency.fragmentation < 0.5:
        raise InputError(f"{where}: efficiency.fragmentation: {efficiency.fragmentation:g} found, 0 to 0.5 is allowed")
    for field, most in (("launch_seconds", 1.0), ("overhead_bytes", device.memory_bytes)):
        value = getattr(efficiency, field)
        if not 0 <= value <= most:
            raise InputError(f"{where}: efficiency.{field}: {value:g} found, 0 to {most:g} is needed")
    _check_levels(device, where)


def _check_levels(device: DeviceSpec, where: str) -> None:
    if not device.levels:
        raise InputError(f"{where}: levels: empty, at least one link level is needed")
    for level in device.levels:
        if not 0 < level.bandwidth < math.inf or not 0 <= level.latency <= 1 or level.span < 1:
            raise InputError(
                f"{where}: levels: {level.name}: a positive bandwidth and span and a latency of 0 to 1 s are needed"
            )
    for inner, outer in zip(device.levels, device.levels[1:], strict=False):
        if outer.bandwidth > inner.bandwidth:
            raise InputError(
                f"{where}: {outer.bandwidth / 1e9:g} GB/s over {outer.name} found, at most {inner.bandwidth / 1e9:g}"
                f" GB/s of {inner.name} inside it is allowed (GB/s per direction per device, not per node)"
            )
        if outer.span <= inner.span:
            raise InputError(
                f"{where}: levels: {outer.name} spans {outer.span} devices, more than {inner.name} is needed"
            )
