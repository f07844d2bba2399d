"""Compiled functions where there is no place to keep the machine code."""

from typing import Any

from paraplan.foundation.compilation import compiled


def test_function_without_a_place_for_its_cache_is_compiled_all_the_same() -> None:
    names: dict[str, Any] = {}
    # Numba finds no place for what comes from no file, as for a read-only install without a home.
    exec("def double(x):\n    return 2 * x", names)
    assert compiled(names["double"])(2) == 4
