"""A Prefect API for the time of one run: the user's, the one of ``make serve``, else a private loopback server.

The server that Prefect starts by itself inside a flow's process loses final task states when the process ends and
prints a trace about it; a server in a process of its own, stopped after every state is recorded, does neither.
"""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

from flows.environment import PROJECT, state_folder
from flows.output import require_writable
from paraplan.foundation.errors import InputError

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

START_SECONDS = 120.0
"""A first start creates the database, which takes about ten seconds on a quiet machine."""

QUIET_SECONDS = 0.6
"""Between two looks at what the server has recorded."""

SETTLE_SECONDS = 30.0


def healthy(url: str, timeout: float = 2.0) -> bool:
    """Whether a Prefect API answers at ``url``."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=timeout) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def served_url() -> str | None:
    """The API of a running ``make serve``, if there is one."""
    try:
        url = str(json.loads((state_folder() / "serve" / "server.json").read_text())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return url if healthy(url) else None


def start(*, port: int = 0, detached: bool = False) -> tuple["subprocess.Popen[bytes]", str]:
    """Start a server process and wait until it answers.

    Args:
        port: Loopback port; 0 for any free one.
        detached: Whether the server outlives this process.

    Returns:
        The process and the URL of its API.

    Raises:
        InputError: it did not start; the message names its log.
    """
    state = state_folder()
    state.mkdir(parents=True, exist_ok=True)
    log = state / "server.log"
    command = [sys.executable, "-m", "flows.server_process", "--port", str(port)]
    environment = {key: value for key, value in os.environ.items() if key != "PREFECT_API_URL"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    # Two servers that create the same database at once break it: one start at a time.
    with (state / "start.lock").open("w") as lock, log.open("ab") as log_stream:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            [*command, "--detached"] if detached else command,
            stdin=subprocess.DEVNULL if detached else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log_stream,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the flow, which then ends the server in order.
        )
        assert process.stdout is not None
        with process.stdout as first_line:
            line = first_line.readline().strip()
        deadline = time.monotonic() + START_SECONDS
        url = f"http://127.0.0.1:{line.decode()}/api"
        while line and time.monotonic() < deadline and process.poll() is None:
            if healthy(url):
                return process, url
            time.sleep(0.1)
    stop(process)
    raise InputError(f"the Prefect server did not start on port {port or 'any free'}: see {log}")


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a server that this process started, in order and, failing that, at once."""
    if process.stdin is not None:
        process.stdin.close()
    else:
        process.terminate()
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def prefect_api() -> Iterator[str]:
    """Point Prefect at an API for the duration of the block and give its URL.

    Raises:
        InputError: the state folder cannot be written, or ``PREFECT_API_URL`` is set but nothing answers there.
    """
    require_writable(state_folder())
    given = os.environ.get("PREFECT_API_URL")
    if given:
        if not healthy(given, timeout=10):
            raise InputError(f"PREFECT_API_URL: found {given!r}, but no Prefect server answers there")
        yield given
        return
    served = served_url()
    if served:
        with _settings(served):
            yield served
        return
    process, url = start()
    try:
        with _settings(url):
            yield url
    finally:
        stop(process)


@contextlib.contextmanager
def _settings(url: str) -> Iterator[None]:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    os.environ["PREFECT_API_URL"] = url
    try:
        with temporary_settings({PREFECT_API_URL: url}):
            yield
    finally:
        del os.environ["PREFECT_API_URL"]


def wait_until_recorded(flow_run_id: UUID) -> bool:
    """Wait until every task run of a finished flow run has its final state in the database.

    Task states travel as events and are written by a background service, so they arrive after the flow has ended.

    Returns:
        Whether all arrived in time.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
    from prefect.logging.handlers import APILogHandler

    APILogHandler().flush()  # The last lines of the log travel by themselves, too.

    this_run = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    deadline = time.monotonic() + SETTLE_SECONDS
    before = -1
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            states: list[State[Any] | None] = []
            while page := client.read_task_runs(flow_run_filter=this_run, limit=200, offset=len(states)):
                states += [run.state for run in page]
            # A task run whose first event is still under way is not listed at all: two equal lists in a row are needed.
            if len(states) == before and all(state is not None and state.is_final() for state in states):
                return True
            before = len(states)
            time.sleep(QUIET_SECONDS)
    return False
