"""Reading YAML and JSON documents, and writing files whole, with errors that name the file and the line."""

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from paraplan.foundation.errors import InputError


class _UniqueKeyLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses a key that is given twice, which YAML's own loader silently overwrites."""


def _whole(text: str, read: Callable[[str], int] = int) -> int | float:
    """A whole number; beyond 64 bits as a float, which fields refuse by name just as they do 1e400."""
    try:
        value = read(text)
        return value if -(2**63) <= value < 2**63 else float(value)
    except (OverflowError, ValueError):
        # Beyond the largest float, or beyond the digits that Python converts; anything shorter is no number.
        if len(text) < 200:
            raise
        return -math.inf if text.startswith("-") else math.inf


def _yaml_whole(loader: Any, node: yaml.ScalarNode) -> int | float:
    return _whole(node.value, lambda _: int(loader.construct_yaml_int(node)))


_UniqueKeyLoader.add_constructor("tag:yaml.org,2002:int", _yaml_whole)


def _unique_mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    seen: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, (str, int, float, bool, type(None))):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a plain word", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; refuses a key that is given twice, of which the json module keeps the last."""
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise ValueError(f"key {key!r} is given twice")
        seen[key] = value
    return seen


def find_file(folders: Iterable[Path], names: Iterable[str]) -> Path | None:
    """The first of ``folders`` and in it the first of ``names`` that is a file; None where there is none.

    What the system refuses to look at (a name too long, a locked folder) is none either.
    """
    candidates = (folder / name for folder in folders for name in names)
    return next((path for path in candidates if os.path.isfile(path)), None)  # noqa: PTH113 (pathlib's raises)


def read_text(path: Path) -> str:
    """The text of a file, without the mark that some editors and spreadsheets put in front.

    Raises:
        InputError: it is missing, a folder, unreadable or not UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, a file is needed") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def parse(text: str, where: str) -> Any:
    """The value of a YAML (or JSON) document.

    Raises:
        InputError: a syntax error, with its line.
    """
    if where.endswith(".json"):
        try:
            return json.loads(text, parse_constant=float, parse_int=_whole, object_pairs_hook=_unique_object)
        except json.JSONDecodeError as error:
            raise InputError(f"{where}:{error.lineno}: JSON syntax: {error.msg}") from None
        except ValueError as error:
            raise InputError(f"{where}: JSON: {error}") from None
        except RecursionError:
            raise InputError(f"{where}: nested too deeply") from None
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be parsed"
        raise InputError(f"{where}{line}: YAML syntax: {problem}") from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{where}: YAML syntax: {error or 'nested too deeply'}") from None


def line_of(text: str, field: str) -> int | None:
    """The line on which a YAML document sets a field, from 1.

    Args:
        text: The document.
        field: Keys joined by dots; where the document has only the first of them, their line is meant.

    Returns:
        None where not even the first key is there, or the text is no YAML.
    """
    try:
        node = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError):
        return None
    line = None
    for key in field.split("."):
        if isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in node.value if getattr(pair[0], "value", None) == key), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and key.isdigit() and int(key) < len(node.value):
            node = node.value[int(key)]
            line = node.start_mark.line + 1
        else:
            break
    return line


def read_document(path: Path) -> Any:
    """The value in a YAML or JSON file."""
    return parse(read_text(path), str(path))


def read_mapping(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML or JSON file.

    Raises:
        InputError: also where the document is something else.
    """
    value = read_document(path)
    if not isinstance(value, dict):
        raise InputError(
            f"{path}: {type(value).__name__ if value is not None else 'nothing'} found, a mapping is needed"
        )
    return value


def make_folder(path: Path) -> None:
    """Make a folder and those above it, where they are missing.

    Raises:
        InputError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{path}: a file stands in the way, a folder is needed") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be made ({error.strerror or error})") from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Write beside and rename, so that no reader ever sees half a file.

    A link stays and the file it leads to is replaced; a device or a pipe is written to, for it cannot be replaced.

    Raises:
        InputError: the file cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(data)
            return
        target = Path(os.path.realpath(path))
        make_folder(target.parent)
        handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            umask = os.umask(0)
            os.umask(umask)
            Path(beside).chmod(0o666 & ~umask)
            Path(beside).replace(target)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
