"""What a person reads in the Prefect interface: published on every run, also where a step's result was cached."""

import base64
import re
from collections.abc import Mapping, Sequence
from uuid import UUID

from prefect.artifacts import MarkdownArtifact

LARGEST_PICTURE = 700_000
"""Bytes. An artifact above 1.5 MB is stored, but Prefect drops the event that announces it."""


def publish(key: str, description: str, markdown: str, task_run_id: UUID | None = None) -> None:
    """Publish Markdown under a key.

    A step's artifact is made by the flow, not inside the task: a cached task does not run, and the run that changed
    nothing would have nothing to read.

    Args:
        key: Any text; becomes lower-case words with dashes. The same key again is a new version.
        description: One line.
        markdown: The text.
        task_run_id: The step it belongs to; None for the flow run itself.
    """
    one = MarkdownArtifact(key=_key(key), description=description, markdown=markdown, task_run_id=task_run_id)
    one.create(_sync=True)  # type: ignore[call-arg]


def picture(title: str, content: bytes, kind: str) -> str:
    """A picture inside Markdown.

    Args:
        title: Text in place of the picture.
        content: The file.
        kind: ``png`` or ``svg+xml``.
    """
    if len(content) > LARGEST_PICTURE:
        return f"*{title}: too large to show here, see the file in the output folder.*"
    return f"![{title}](data:image/{kind};base64,{base64.b64encode(content).decode()})"


def bullet_table(header: Sequence[str], rows: Mapping[str, str]) -> str:
    """Two columns."""
    lines = [
        f"| {header[0]} | {header[1]} |",
        "| :-- | --: |",
        *(f"| {name} | {value} |" for name, value in rows.items()),
    ]
    return "\n".join(lines)


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
