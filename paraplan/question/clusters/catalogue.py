"""The device catalogue: one YAML file a device; a user's own device is one more."""

import difflib
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

from paraplan.foundation.documents import find_file, read_mapping
from paraplan.foundation.errors import InputError
from paraplan.foundation.records import build, refuse_unknown, shown
from paraplan.question.clusters.spec import MOST_DEVICES, ClusterSpec, DeviceSpec, Efficiency

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
    key = _key(name_or_path)
    if key in known:
        return known[key]
    if name_or_path.endswith((".yaml", ".yml", ".json")):
        folders = [Path(), *([beside.parent, beside.parent.parent / "clusters"] if beside else [])]
        path = find_file(folders, [name_or_path])
        if path is None:
            raise InputError(f"device: {shown(name_or_path)} found, there is no such device file that can be read")
        return read_device(path)
    close = difflib.get_close_matches(key, list(known), 1, 0.6)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise InputError(
        f"device: {shown(name_or_path)} found, a device file or one of {', '.join(device_names())} is needed{hint}"
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
        InputError: no devices or too many, a budget above the device's memory, or a network faster than the links
            inside a node.
    """
    if not 1 <= devices <= MOST_DEVICES:
        raise InputError(f"{where}.devices: {devices} found, 1 to {MOST_DEVICES:,} are needed")
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


def overlaid(device: DeviceSpec, path: Path) -> DeviceSpec:
    """``device`` with the calibrated efficiencies of an overlay (as ``paraplan calibrate`` writes it).

    Raises:
        InputError: the overlay was fitted to another device, or has no possible efficiencies.
    """
    overlay = read_mapping(path)
    refuse_unknown(overlay, ("device", "efficiency"), str(path))
    fitted = overlay.get("device", device.name)
    if _key(str(fitted)) not in map(_key, (device.name, *device.aliases)):
        raise InputError(f"{path}: device: {shown(fitted)} found, {device.name!r} is needed: it was fitted to another")
    values = overlay.get("efficiency")
    if not isinstance(values, Mapping):
        found = "missing" if values is None else f"{shown(values)} found"
        raise InputError(f"{path}: efficiency: {found}, a mapping is needed")
    return replace(
        device, efficiency=build(Efficiency, asdict(device.efficiency) | dict(values), str(path), "efficiency.")
    )


def _key(name: str) -> str:
    """A device's name as it is compared."""
    return name.lower().replace("_", "-").replace(" ", "-")


def _check(device: DeviceSpec, where: str) -> None:
    for precision in device.peak_flops:
        if precision not in PRECISIONS:
            raise InputError(f"{where}: peak_flops.{precision}: unknown precision; allowed: {', '.join(PRECISIONS)}")
    if not device.peak_flops:
        raise InputError(f"{where}: peak_flops: empty, at least one precision is needed")
    efficiency = device.efficiency
    for field in ("fp8", "fp4"):
        if not 0 < getattr(efficiency, field) * efficiency.matmul <= 1:
            raise InputError(
                f"{where}: efficiency.{field}: {getattr(efficiency, field):g} found, more than 0 is needed and at most"
                f" {1 / efficiency.matmul:.3g}, which with matmul is the whole peak"
            )
    _check_levels(device, where)


def _check_levels(device: DeviceSpec, where: str) -> None:
    if not device.levels:
        raise InputError(f"{where}: levels: empty, at least one link level is needed")
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
