"""A file to be played: ``plan.json`` of the flow, the JSON of ``paraplan ppb``, or lists in YAML."""

from collections.abc import Mapping
from pathlib import Path

from paraplan.balance.play import Given, given_of
from paraplan.foundation.documents import read_document
from paraplan.foundation.errors import InputError
from paraplan.plan.published import read_plan_json


def read_plan(path: Path, schedule: str | None = None, rank: int = 1) -> Given:
    """Read what is to be played.

    Args:
        path: ``plan.json`` of the flow, the JSON of ``paraplan ppb``, or YAML with the keys of a problem (layers may be
            a name or path), ``offset`` and either ``assignment`` or MindFormers' three lists.
        schedule: Play under this schedule instead.
        rank: Which plan of a ``plan.json``.

    Raises:
        InputError: names the file, the field, what was found and what is needed.
    """
    document = read_document(path)
    where = str(path)
    if isinstance(document, Mapping) and "plans" in document:
        read_plan_json(document, rank, where)
        document = document["plans"][rank - 1]["pipeline"]
    elif rank > 1:
        raise InputError(f"{where}: plans: missing, a plan of rank {rank} is asked for")
    return given_of(document, where, schedule)
