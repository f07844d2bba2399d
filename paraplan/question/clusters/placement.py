"""Where a communication group lies on the levels of the interconnect, from the order of the degrees.

Ranks are dealt as Megatron deals them: tp fastest, then cp, then dp, then pp; the experts' own groups re-deal the
ranks of one stage as etp fastest, then ep, then expert-data-parallel. A group of ``degree`` ranks ``stride`` apart
starts anywhere; where some groups of a kind cross a block boundary and others do not, the slowest decides.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paraplan.question.clusters.spec import LinkLevel

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Placement:
    """Groups on a hierarchy of ``L`` link levels; arrays of shape (L, N)."""

    degree: FloatArray
    """Ranks of the group, shape (N,)."""
    inside: FloatArray
    """Ranks of the group in one block of each level; the outermost holds all of them."""

    @property
    def blocks_N(self) -> FloatArray:
        """Blocks of the innermost level that the group touches."""
        return np.asarray(np.ceil(self.degree / self.inside[0]))


def place(levels: tuple[LinkLevel, ...], degree: npt.ArrayLike, stride: npt.ArrayLike) -> Placement:
    """Place groups of ``degree`` ranks that are ``stride`` apart.

    Args:
        levels: Link levels, innermost first.
        degree: Ranks in a group, shape (N,).
        stride: Distance of neighbouring ranks, shape (N,).
    """
    degree_N = np.asarray(degree, dtype=np.float64)
    stride_N = np.asarray(stride, dtype=np.float64)
    extent_N = degree_N * stride_N
    inside = np.empty((len(levels), *np.broadcast_shapes(degree_N.shape, stride_N.shape)))
    for i, level in enumerate(levels):
        if i == len(levels) - 1:
            inside[i] = degree_N
            continue
        aligned_N = (level.span % extent_N) == 0
        # A group that would fit but starts at an odd place is cut in two by a block boundary.
        cut_N = np.where(extent_N <= level.span, np.ceil(degree_N / 2), np.maximum(1, level.span // stride_N))
        inside[i] = np.where(aligned_N, degree_N, np.minimum(cut_N, degree_N))
    return Placement(degree_N, inside)
