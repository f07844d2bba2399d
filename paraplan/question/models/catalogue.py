"""Finding a model config by name or path, and shapes for rows that give only some columns."""

import difflib
from pathlib import Path

from paraplan.foundation.documents import find_file, read_mapping
from paraplan.foundation.errors import InputError
from paraplan.foundation.records import shown
from paraplan.question.models.readers import read
from paraplan.question.models.spec import ModelSpec

SHIPPED = Path(__file__).parent / "shapes"
_SUFFIXES = (".yaml", ".yml", ".json")


def model_names() -> list[str]:
    """Names of the shipped model configs."""
    return sorted(path.stem for path in SHIPPED.glob("*") if path.suffix in _SUFFIXES)


def find_model(name_or_path: str, beside: Path | None = None) -> Path:
    """The config file that a name or a path means.

    Args:
        name_or_path: A path, or the name of a config in ``configs/models``.
        beside: The file that names it: relative paths are tried from its folder too, and its neighbour
            folder ``models`` before the shipped one.

    Raises:
        InputError: nothing is found; names the shipped ones.
    """
    folders = [Path()]
    if beside is not None:
        folders += [beside.parent, beside.parent.parent / "models"]
    folders += [Path("configs/models"), SHIPPED]
    names = [name_or_path] if name_or_path.endswith(_SUFFIXES) else [name_or_path + suffix for suffix in _SUFFIXES]
    path = find_file(folders, names)
    if path is not None:
        return path
    known = model_names()
    close = difflib.get_close_matches(name_or_path.lower(), known, 1, 0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise InputError(
        f"model: {shown(name_or_path)} found, a readable config file or one of {', '.join(known)} is needed{hint}"
    )


def load_model(name_or_path: str, beside: Path | None = None) -> ModelSpec:
    """Read a model by its name in ``configs/models`` or the path of a ``config.json`` (or the same as YAML).

    Raises:
        InputError: not found, or not a config that can be read.
    """
    path = find_model(name_or_path, beside)
    name = path.parent.name if path.stem == "config" else path.stem
    return read(read_mapping(path), name or path.stem, str(path))
