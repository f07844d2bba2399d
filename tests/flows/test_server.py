import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows import server
from flows.environment import PROJECT, defaults
from flows.server import healthy
from paraplan.foundation.errors import InputError

pytestmark = [pytest.mark.flow, pytest.mark.xdist_group("prefect")]

OWNER = """
import sys, time
from flows.server import start
process, url = start()
print(process.pid, url, flush=True)
time.sleep(60)
"""


def alive(pid: int) -> bool:
    """Whether a process runs (one that ended but was not waited for does not)."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


def test_private_server_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PARAPLAN_STATE": str(tmp_path), "PYTHONPATH": str(PROJECT)}
    for name in defaults():
        environment.pop(name, None)
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=environment, text=True)
    assert owner.stdout is not None
    pid, url = owner.stdout.readline().split()
    assert healthy(url)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 20
    while alive(int(pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(int(pid))
    assert not healthy(url)


def test_api_given_by_the_user_that_does_not_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    message = r"PREFECT_API_URL: found 'http://127.0.0.1:9/api', but no Prefect server"
    with pytest.raises(InputError, match=message), server.prefect_api():
        pass


def test_served_url_is_none_when_its_server_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARAPLAN_STATE", str(tmp_path))
    assert server.served_url() is None
    (tmp_path / "serve").mkdir()
    (tmp_path / "serve" / "server.json").write_text(json.dumps({"pid": 1, "url": "http://127.0.0.1:9/api"}))
    assert server.served_url() is None


def test_defaults_send_nothing_outside() -> None:
    settings = defaults()
    assert settings["DO_NOT_TRACK"] == "1"
    assert settings["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert settings["PREFECT_SERVER_UI_V2_ENABLED"] == "false"
