"""Compiled inner loops, kept on disk where there is a place to keep them."""

from typing import Any

import numba


def compiled(function: Any) -> Any:
    """``function`` as machine code that runs without the interpreter's lock.

    Numba refuses to cache where neither the package's folder nor the user's can be written (a read-only install
    without a home); then every process compiles anew.
    """
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)
