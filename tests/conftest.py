"""Shared by all tests. State goes to a folder of its own, set before Prefect is imported and reads its settings."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["PARAPLAN_STATE"] = tempfile.mkdtemp(prefix="paraplan-tests-")
os.environ.pop("PREFECT_API_URL", None)

SMALL_PLAN = """\
model: llama3-8b
cluster: {device: h100-80gb-sxm, devices: 16}
training: {sequence_length: 4096, global_batch: 64}
search: {tp: [2, 4], cp: 1, ep: 1, pp: [1, 2, 4], vpp: 1, mbs: [1, 2], sp: 1, zero_stage: 1, recompute: none, top: 2}
balance: {time_limit_s: 10}
"""


@pytest.fixture
def small_plan(tmp_path: Path) -> Path:
    """A plan config that is answered within seconds."""
    path = tmp_path / "small.yaml"
    path.write_text(SMALL_PLAN)
    return path


@pytest.fixture
def fresh_cache(tmp_path: Path) -> Iterator[Path]:
    """A folder of cached results that no other test has written to."""
    from prefect.settings import PREFECT_RESULTS_LOCAL_STORAGE_PATH, temporary_settings

    with temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: str(tmp_path / "cache")}):
        yield tmp_path / "cache"


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[str]:
    """One private Prefect server for all flow tests of this process."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from flows.server import prefect_api

    # The heartbeat alone would make every flow run last a second.
    with prefect_api() as url, temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield url
