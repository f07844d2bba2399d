"""``make serve`` and ``make stop``: a loopback Prefect server, a worker, and the deployments of this project.

Both may be called at any time and any number of times: ``start`` starts what is not running, ``stop`` ends what is.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.environment import PROJECT, state_folder
from flows.output import require_writable
from flows.server import healthy, start
from paraplan.cli.arguments import Parser
from paraplan.foundation.documents import write_whole
from paraplan.foundation.errors import InputError, ParaplanError

PORT = 4280
"""Not Prefect's own 4200, where a user's other server may be."""

POOL = "paraplan"
STOP_SECONDS = 40.0
"""A worker gives its flow runs up to half a minute to end."""


def serve(port: int) -> str:
    """Start what is not running; gives the address of the interface."""
    require_writable(state_folder())
    folder = state_folder() / "serve"
    server = _running(folder / "server.json")
    if server is None or not healthy(server["url"], timeout=10):
        if server is not None:
            _end(folder / "server.json")
        process, url = start(port=port, detached=True)
        _remember(folder / "server.json", process.pid, url=url)
    else:
        url = server["url"]
    environment = {**os.environ, "PREFECT_API_URL": url, "PARAPLAN_ROOT": str(PROJECT)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    _prefect(environment, "work-pool", "create", POOL, "--type", "process", "--overwrite")
    _prefect(environment, "--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
    if _running(folder / "worker.json") is None:
        with (state_folder() / "worker.log").open("ab") as log:
            worker = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "prefect",
                    "worker",
                    "start",
                    "--pool",
                    POOL,
                    "--type",
                    "process",
                    "--name",
                    POOL,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=PROJECT,
                env=environment,
                start_new_session=True,
            )
        _remember(folder / "worker.json", worker.pid, url=url)
    return url.removesuffix("/api")


def stop() -> list[str]:
    """End the worker, then the server; gives the names of what was running."""
    folder = state_folder() / "serve"
    return [name for name in ("worker", "server") if _end(folder / f"{name}.json")]


def _prefect(environment: dict[str, str], *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", *arguments],
        env=environment,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise InputError(f"prefect {' '.join(arguments)}: {(done.stderr or done.stdout).strip()[-400:]}")


def _remember(path: Path, pid: int, **more: str) -> None:
    write_whole(path, json.dumps({"pid": pid, "command": _command(pid), **more}) + "\n")


def _running(path: Path) -> dict[str, Any] | None:
    """What a process file describes, if that very process still runs."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        # A number alone may by now belong to a stranger.
        return record if record["command"] and record["command"] == _command(int(record["pid"])) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _command(pid: int) -> str:
    """When a process was started and by which command; empty if there is none."""
    shown = subprocess.run(["ps", "-o", "stat=,lstart=,args=", "-p", str(pid)], capture_output=True, text=True)
    state, _, command = shown.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else command.strip()


def _end(path: Path) -> bool:
    record = _running(path)
    if record is not None:
        pid = int(record["pid"])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while _command(pid) and time.monotonic() < deadline:
            # The child of this very process must be waited for, or it stays listed.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            time.sleep(0.2)
        if _command(pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    path.unlink(missing_ok=True)
    return record is not None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command behind ``make serve`` and ``make stop``."""
    parser = Parser(prog="python -m flows.serving", description="Start or stop the local service.")
    parser.add_argument("action", choices=("start", "stop"))
    parser.add_argument("--port", type=int, default=PORT, help=f"loopback port of the server ({PORT})")
    try:
        given = parser.parse_args(arguments)
        if given.action == "stop":
            ended = stop()
            sys.stdout.write(f"stopped: {', '.join(ended)}\n" if ended else "nothing was running\n")
        else:
            sys.stdout.write(f"serving at {serve(given.port)} (deployments plan and nightly); end it with: make stop\n")
    except ParaplanError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
