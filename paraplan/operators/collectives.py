"""Seconds of collectives: latency plus bytes over bandwidth, on a hierarchy of links.

A ring moves ``(g - 1) / g`` of the payload past every rank; over the links between blocks it moves ``(m - 1) / m`` of
it into each of the ``m`` blocks, through the network ports of the ``n`` ranks the group has there. The other ranks of
the block belong to sister groups that communicate at the same time over their own ports, so ports are never shared
twice. The slowest level decides (Chan et al. 2007, "Collective communication: theory, practice, and experience";
NCCL's bus-bandwidth convention).
"""

import numpy as np
import numpy.typing as npt

from paraplan.question.clusters.placement import FloatArray, Placement
from paraplan.question.clusters.spec import ClusterSpec


def all_gather(cluster: ClusterSpec, group: Placement, size: npt.ArrayLike, pieces: npt.ArrayLike = 1.0) -> FloatArray:
    """Seconds to gather ``size`` bytes (the whole result) on every rank of the group; reduce-scatter costs the same.

    Args:
        cluster: Whose links.
        group: Where the ranks lie.
        size: Bytes in all.
        pieces: Collectives that move them, each of which waits for a message to go around the ring.
    """
    seconds = _ring_seconds(cluster, group, np.asarray(size, dtype=np.float64))
    return seconds + np.asarray(pieces, dtype=np.float64) * _ring_latency(cluster, group)


reduce_scatter = all_gather


def all_reduce(cluster: ClusterSpec, group: Placement, size: npt.ArrayLike, pieces: npt.ArrayLike = 1.0) -> FloatArray:
    """Seconds to sum ``size`` bytes over the group: around the ring twice, or up and down a tree, whose messages take
    fewer steps; arguments as in :func:`all_gather`."""
    seconds = 2 * _ring_seconds(cluster, group, np.asarray(size, dtype=np.float64))
    latency = np.minimum(2 * _ring_latency(cluster, group), _tree_latency(cluster, group))
    return seconds + np.asarray(pieces, dtype=np.float64) * latency


def all_to_all(cluster: ClusterSpec, group: Placement, size: npt.ArrayLike, copies: int | None = None) -> FloatArray:
    """Seconds in which every rank sends ``size`` bytes, spread evenly over the group's ranks.

    What stays inside a block and what leaves it travel at the same time over different links.

    Args:
        cluster: Whose links.
        group: Where the ranks lie.
        size: Bytes each rank sends.
        copies: Where the bytes are this many copies of the same tokens, each for a random rank, and a token crosses
            to a block once however many of its copies go there (DeepEP; arXiv:2412.19437, section 3.2.2): of ``b``
            blocks a token reaches ``b (1 - (1 - 1/b)^copies)`` in the mean. None: every copy crosses.
    """
    payload = np.asarray(size, dtype=np.float64)
    bandwidths, latencies = _links(cluster)
    worst = np.zeros(np.broadcast_shapes(payload.shape, group.degree.shape))
    before = np.ones_like(group.degree)
    for i, bandwidth in enumerate(bandwidths):
        # Ranks reached over this level: in the same block of level i, but not in the same of the level inside.
        reached = np.maximum(group.inside[i] - before, 0)
        if copies is not None and i:
            blocks = group.degree / before
            reached = reached * blocks * (1 - (1 - 1 / np.maximum(blocks, 1)) ** copies) / copies
        worst = np.maximum(worst, payload * reached / group.degree / bandwidth)
        before = group.inside[i]
    steps = np.where(group.degree > 1, np.log2(np.maximum(group.degree, 2)), 0)
    outer = group.inside[0] < group.degree
    seconds: FloatArray = worst + steps * np.where(outer, latencies[-1], latencies[0])
    return seconds


def point_to_point(cluster: ClusterSpec, group: Placement, size: npt.ArrayLike) -> FloatArray:
    """Seconds to send ``size`` bytes to the next rank of the group, over the outermost link any pair needs."""
    payload = np.asarray(size, dtype=np.float64)
    bandwidths, latencies = _links(cluster)
    bandwidth = np.full(group.degree.shape, bandwidths[0])
    latency = np.full(group.degree.shape, latencies[0])
    for i in range(1, len(bandwidths)):
        crosses = group.inside[i - 1] < group.degree
        bandwidth = np.where(crosses, bandwidths[i], bandwidth)
        latency = np.where(crosses, latencies[i], latency)
    return np.where(group.degree > 1, payload / bandwidth + latency, 0.0)


def _links(cluster: ClusterSpec) -> tuple[list[float], list[float]]:
    efficiency = cluster.device.efficiency
    shares = [efficiency.intra_link] + [efficiency.inter_link] * (len(cluster.levels) - 1)
    return (
        [level.bandwidth * share for level, share in zip(cluster.levels, shares, strict=True)],
        [level.latency for level in cluster.levels],
    )


def _ring_seconds(cluster: ClusterSpec, group: Placement, size: FloatArray) -> FloatArray:
    bandwidths, _ = _links(cluster)
    seconds = size * (group.degree - 1) / group.degree / bandwidths[0]
    for i in range(1, len(bandwidths)):
        blocks = np.ceil(group.inside[i] / group.inside[i - 1])
        through = size * (blocks - 1) / blocks / (group.inside[i - 1] * bandwidths[i])
        seconds = np.maximum(seconds, through)
    return seconds


def _ring_latency(cluster: ClusterSpec, group: Placement) -> FloatArray:
    """A message passes every rank: one hop into each further block of a level, the others over the level inside."""
    _, latencies = _links(cluster)
    total: FloatArray = np.zeros(group.degree.shape)
    blocks = group.degree
    for inside, latency in zip(group.inside, latencies, strict=True):
        outer = np.ceil(group.degree / inside)
        total = total + (blocks - outer) * latency
        blocks = outer
    return total


def _tree_latency(cluster: ClusterSpec, group: Placement) -> FloatArray:
    """Up and down: along the ranks of a block, and along a binary tree of the blocks (NCCL's trees)."""
    _, latencies = _links(cluster)
    total: FloatArray = 2.0 * (group.inside[0] - 1) * latencies[0]
    for i in range(1, len(latencies)):
        blocks = np.ceil(group.inside[i] / group.inside[i - 1])
        total = total + 2 * np.log2(np.maximum(blocks, 1)) * latencies[i]
    return total
