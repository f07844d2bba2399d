"""How many micro-batches a stage keeps activations of, by schedule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from paraplan.foundation.arrays import Array, IntArray
from paraplan.question.layouts import SCHEDULES, Layouts


@dataclass(frozen=True, slots=True)
class InFlightChunks:
    """Chunk activations held at the peak, in units of one chunk of one micro-batch, linear in the stage up to a cap.

    1F1B keeps ``pp − s`` micro-batches and never more than there are (Narayanan et al., arXiv:2104.04473, section
    2.2.1). Interleaving warms up ``2(pp − s − 1) + (vpp − 1)·pp`` chunks before its first backward (section 2.2.2),
    the less-memory order ``pp − s − 1 + (vpp − 1)·pp``. ZB-H1 holds ``pp`` on every stage, ZB-H2 ``2pp − 1``, until
    their weight gradients ran (arXiv:2401.10241), ZB-V ``pp`` micro-batches of both chunks (arXiv:2405.15362) and
    DualPipe-V one more.
    """

    at_first_N: Array
    per_stage_N: Array
    cap_N: Array
    """All chunks of all micro-batches."""

    def on(self, stage: IntArray) -> Array:
        """Chunk activations that ``stage`` holds, shape (N,)."""
        return np.minimum(self.at_first_N + self.per_stage_N * stage, self.cap_N)


def chunks_in_flight(layouts: Layouts) -> InFlightChunks:
    """What every layout's stages hold."""
    pp, vpp, mb = (column.astype(np.float64) for column in (layouts.pp, layouts.vpp, layouts.mb))
    cap = mb * vpp
    one = np.ones_like(pp)
    formulas: Mapping[str, Callable[[], tuple[Array, Array]]] = {
        "1f1b": lambda: (pp * vpp, -vpp),
        "interleaved": lambda: (np.where(vpp > 1, (vpp + 1) * pp - 1, pp), np.where(vpp > 1, -2.0, -1.0)),
        "interleaved-less-memory": lambda: (vpp * pp, -one),
        "gpipe": lambda: (cap, 0 * one),
        "zb-h1": lambda: (pp * vpp, 0 * one),
        "zb-h2": lambda: ((2 * pp - 1) * vpp, 0 * one),
        "zb-v": lambda: (pp * vpp, 0 * one),
        "dualpipe-v": lambda: (pp * vpp + 1, 0 * one),
        "seq1f1b": lambda: ((pp + 1) / 2 * vpp, -vpp / 2),
    }
    present = np.flatnonzero(np.bincount(layouts.schedule, minlength=len(SCHEDULES)))
    first, slope = formulas[SCHEDULES[int(present[0])]]()
    for index in present[1:]:
        own_first, own_slope = formulas[SCHEDULES[int(index)]]()
        chosen = layouts.schedule == index
        first, slope = np.where(chosen, own_first, first), np.where(chosen, own_slope, slope)
    return InFlightChunks(first, slope, cap)
