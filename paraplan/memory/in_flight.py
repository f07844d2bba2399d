"""How many micro-batches a stage keeps activations of, by schedule."""

import numpy as np
import numpy.typing as npt

from paraplan.layouts import SCHEDULES, IntArray, Layouts

Array = npt.NDArray[np.float64]


def chunks_in_flight(layouts: Layouts, stage: IntArray) -> Array:
    """Chunk activations that ``stage`` holds at its peak, in units of one chunk of one micro-batch, shape (N,).

    1F1B keeps ``pp − s`` micro-batches and never more than there are (Narayanan et al., arXiv:2104.04473, section
    2.2.1). Interleaving warms up ``2(pp − s − 1) + (vpp − 1)·pp`` chunks before its first backward (section 2.2.2),
    the less-memory order ``pp − s − 1 + (vpp − 1)·pp``. The zero-bubble schedules keep what their papers' tables say:
    ZB-H1 as 1F1B, ZB-H2 up to ``2pp − 1`` (arXiv:2401.10241), ZB-V and DualPipe-V ``pp`` micro-batches on each stage
    (arXiv:2405.15362).
    """
    pp, vpp, mb = (column.astype(np.float64) for column in (layouts.pp, layouts.vpp, layouts.mb))
    s = stage.astype(np.float64)
    plain = (pp - s) * vpp
    warm = np.where(vpp > 1, (vpp - 1) * pp + 2 * (pp - s - 1) + 1, plain)
    counts = {
        "1f1b": plain,
        "interleaved": warm,
        "interleaved-less-memory": np.where(vpp > 1, (vpp - 1) * pp + (pp - s), plain),
        "gpipe": mb * vpp,
        "zb-h1": plain,
        "zb-h2": np.where(pp > 1, 2 * (pp - s) - 1, 1) * vpp,
        "zb-v": pp * vpp,
        "dualpipe-v": (pp + 1) * vpp,
        "seq1f1b": (pp - s + 1) / 2 * vpp,
    }
    used = np.unique(layouts.schedule)
    if len(used) == 1:
        return np.minimum(counts[SCHEDULES[int(used[0])]], mb * vpp)
    result = np.zeros(len(layouts))
    for index in used:
        result = np.where(layouts.schedule == index, counts[SCHEDULES[int(index)]], result)
    return np.minimum(result, mb * vpp)
