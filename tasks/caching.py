"""How a step's result is kept: under a key made of what it depends on, in a file that is checked when it is read."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal, ParamSpec

from prefect import Task, task
from prefect.cache_policies import CachePolicy
from prefect.context import TaskRunContext
from prefect.serializers import Serializer
from prefect.states import Failed

from paraplan.foundation.errors import ParaplanError
from paraplan.foundation.fingerprints import digest
from tasks import code_version
from tasks.logs import step_logger

Result = dict[str, Any]
"""What a step gives: plain JSON values with text keys, so that a fresh and a cached result are equal."""

P = ParamSpec("P")


@dataclass
class ContentAndCode(CachePolicy):
    """``step/digest`` over the content of the step's arguments and the code that computes it."""

    step: str = ""
    modules: tuple[str, ...] = ()
    ignored: frozenset[str] = field(default_factory=frozenset)

    def compute_key(
        self, task_ctx: TaskRunContext, inputs: dict[str, Any], flow_parameters: dict[str, Any], **kwargs: Any
    ) -> str:
        """The key of one call."""
        content = {name: value for name, value in inputs.items() if name not in self.ignored}
        return f"{self.step}/{digest({'code': code_version.digest(self.modules), 'inputs': content})}"


class CheckedJson(Serializer):
    """JSON with its own checksum: a file that was cut short or altered is no result, and the step runs again."""

    type: Literal["paraplan-checked-json"] = "paraplan-checked-json"

    def dumps(self, obj: Any) -> bytes:
        """The checksum, a line break, the JSON text."""
        text = json.dumps(obj, allow_nan=False, separators=(",", ":")).encode()
        return hashlib.sha256(text).hexdigest().encode() + b"\n" + text

    def loads(self, blob: bytes) -> Any:
        """The value, if the text is the one that was written."""
        checksum, _, text = blob.partition(b"\n")
        if hashlib.sha256(text).hexdigest().encode() != checksum:
            raise ValueError("a cached result was altered")
        return json.loads(text)


def step(
    name: str, *, run_name: str, modules: tuple[str, ...], ignored: tuple[str, ...] = (), isolated: bool = False
) -> Callable[[Callable[P, Result]], Task[P, Result]]:
    """Make a cached Prefect task of a function.

    A question without an answer is an answer too: the error is returned as ``{"error", "exit_status"}``, which
    :func:`refused` recognises, so that it is cached and ends the flow with one line instead of a trace.

    Args:
        name: Verb in the interface and folder in the cache.
        run_name: Name of one run, a template over the arguments.
        modules: The library modules that compute the step; with all they import they are the code's version.
        ignored: Arguments that only serve to label the run.
        isolated: Whether the step is one of several of its kind, so that any exception is one failed run with a
            message, for the report, while the others go on.
    """

    def decorate(function: Callable[P, Result]) -> Task[P, Result]:
        @wraps(function)
        def answered(*args: P.args, **kwargs: P.kwargs) -> Result:
            try:
                return function(*args, **kwargs)
            except ParaplanError as error:
                return {"error": str(error), "exit_status": error.exit_status}
            except Exception as error:
                if not isolated:
                    raise
                step_logger(function.__module__).debug("%s failed", name, exc_info=True)
                return Failed(message=f"{type(error).__name__}: {error}")  # type: ignore[return-value] # Prefect's way

        policy = ContentAndCode(step=name, modules=(*modules, function.__module__), ignored=frozenset(ignored))
        return task(
            name=name,
            task_run_name=run_name,
            cache_policy=policy,
            persist_result=True,
            result_serializer=CheckedJson(),
            cache_result_in_memory=False,
        )(answered)

    return decorate


def refused(result: Result) -> bool:
    """Whether a step found that there is no answer."""
    return "exit_status" in result
