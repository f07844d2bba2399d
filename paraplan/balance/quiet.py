"""HiGHS greets on standard output when a process first makes a solver, whatever its options; here it does not."""

import ctypes
import os
from functools import cache


@cache
def silence_greeting() -> None:
    """Make one solver with standard output closed, so that the greeting is over."""
    import highspy

    libc = ctypes.CDLL(None)
    libc.fflush(None)
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        highspy.Highs().silent()  # type: ignore[no-untyped-call]
        libc.fflush(None)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
