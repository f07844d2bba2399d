"""What it is trained on: device catalogue, links, where groups lie."""

from paraplan.question.clusters.catalogue import device_names, load_device, make_cluster
from paraplan.question.clusters.spec import ClusterSpec, DeviceSpec, Efficiency, LinkLevel

__all__ = ["ClusterSpec", "DeviceSpec", "Efficiency", "LinkLevel", "device_names", "load_device", "make_cluster"]
