"""Where the flows keep their state, and the Prefect settings every process of this project runs with.

Prefect reads its settings from environment variables while it is imported, so the defaults must stand before the
first ``import prefect``: :mod:`flows` calls :func:`prepare` when it is imported. What the user has set wins.
"""

import os
import warnings
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
"""The folder that holds ``flows/``, ``configs/`` and ``deployments/``."""


def state_folder() -> Path:
    """Where databases, cached results, logs and process numbers live: ``$PARAPLAN_STATE``, else ``.paraplan`` here."""
    return Path(os.environ.get("PARAPLAN_STATE") or Path.cwd() / ".paraplan").absolute()


def defaults() -> dict[str, str]:
    """Environment variables for every process: private home, nothing sent outside, nothing advertised."""
    state = state_folder()
    return {
        # The home is the project's own: a user's other Prefect profiles and databases stay untouched.
        "PREFECT_HOME": str(state / "prefect"),
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(state / "cache"),
        "PREFECT_LOGGING_EXTRA_LOGGERS": "paraplan",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
        "DO_NOT_TRACK": "1",
        # Relative, so that the page works on any port and behind a tunnel.
        "PREFECT_UI_API_URL": "/api",
        # The newer page asks an analytics host for its configuration on every load; the older one asks nobody.
        "PREFECT_SERVER_UI_V2_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        # SQLite: record task states in batches, or a fan-out waits for one transaction per state.
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
    }


def prepare() -> None:
    """Set the defaults that the user has not set, and make the home, which Prefect makes only one level deep."""
    for name, value in defaults().items():
        os.environ.setdefault(name, value)
    try:
        Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
    except OSError:
        # The commands refuse such a folder with one line; Prefect would add its own two.
        warnings.filterwarnings("ignore", "Failed to create the Prefect home directory")
