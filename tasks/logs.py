"""Where a step reports: the run's log in Prefect, the module's own where there is no run."""

import logging

from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger


def step_logger(name: str) -> "logging.Logger | logging.LoggerAdapter[logging.Logger]":
    """The logger of the current run, else the one called ``name``."""
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger(name)
