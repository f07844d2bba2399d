"""Work on two threads that ends when its time is over and when the user stops the command."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

WORKERS = 2
"""Compiled search and HiGHS run outside Python's lock."""


def run_all(
    work: Callable[[Item], Result], items: Sequence[Item], stop: Callable[[], object], seconds: float | None = None
) -> list[Result]:
    """The results of ``work``, in the order of ``items``.

    Args:
        work: Called in a thread.
        items: What it is called with.
        stop: Called when ``seconds`` are over and when the waiting is interrupted (Ctrl-C reaches the main thread
            alone): makes all work, also what has not begun, return soon.
        seconds: None: no limit.
    """
    with ThreadPoolExecutor(WORKERS) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            wait(futures, seconds)
        finally:
            stop()
        return [future.result() for future in futures]
