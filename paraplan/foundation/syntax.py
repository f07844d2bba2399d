"""Python's parser behind a lock: in CPython 3.11 two threads that build syntax trees at once can fail.

``SystemError: AST constructor recursion depth mismatch`` (python/cpython issue 106905): the depth is kept per
interpreter, not per thread.
"""

import ast
import threading
from typing import Literal, overload

_LOCK = threading.Lock()


@overload
def parse(text: str, mode: Literal["exec"]) -> ast.Module: ...
@overload
def parse(text: str, mode: Literal["eval"]) -> ast.Expression: ...
def parse(text: str, mode: Literal["exec", "eval"]) -> ast.Module | ast.Expression:
    """The syntax tree of ``text``; raises what :func:`ast.parse` does."""
    with _LOCK:
        return ast.parse(text, mode=mode)  # type: ignore[return-value]
