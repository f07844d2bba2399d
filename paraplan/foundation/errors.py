"""What a user can get wrong, and the exit status each mistake has on the command line."""

from typing import Any, Self


class ParaplanError(Exception):
    """Base of every error that reaches a user as one line, without a traceback."""

    exit_status = 2


class InputError(ParaplanError):
    """A file or a value that the user wrote cannot be used.

    The parts are data, so that a caller that knows the file, the section or the line adds it (:meth:`within`) without
    touching text. ``str`` renders them: ``plan.yaml:7: training.precision: 'bf17' found, one of bf16, fp8 is allowed``.

    Args:
        problem: What is wrong, as a clause, where ``found`` and ``needed`` do not say it: "no such file".
        place: The file, or the option of the command line.
        line: Of the file, from 1.
        field: The key with its sections, joined by dots: "training.precision".
        found: The value as it is shown (:func:`paraplan.foundation.records.shown`), or "missing".
        needed: What is allowed in its place, as a clause: "at least 1 is needed".
        hint: What the user probably meant, or can do.
    """

    def __init__(
        self,
        problem: str = "",
        *,
        place: str = "",
        line: int | None = None,
        field: str = "",
        found: str = "",
        needed: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(problem)
        self.problem, self.place, self.line, self.field = problem, place, line, field
        self.found, self.needed, self.hint = found, needed, hint

    @classmethod
    def missing(cls, needed: str, *, place: str = "", field: str = "") -> Self:
        """An error about a value that is not there."""
        return cls(place=place, field=field, found=MISSING, needed=needed)

    def within(self, *, place: str = "", section: str = "", line: int | None = None) -> Self:
        """The same error as seen from outside: a section is put in front of its field, place and line are added.

        An error that names a place keeps it, and with it its field: it is about another file than the caller's.
        """
        parts = self._parts()
        if self.place and self.place != place:
            return type(self)(**parts)
        if section:
            parts["field"] = f"{section}.{self.field}" if self.field else section
        parts["place"] = self.place or place
        parts["line"] = self.line if line is None else line
        return type(self)(**parts)

    def _parts(self) -> dict[str, Any]:
        names = ("problem", "place", "line", "field", "found", "needed", "hint")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        place = f"{self.place}:{self.line}" if self.place and self.line is not None else self.place
        found = self.found if self.found in ("", MISSING) else f"{self.found} found"
        said = ", ".join(part for part in (self.problem, found, self.needed) if part)
        return ": ".join(part for part in (place, self.field, said) if part) + (f"; {self.hint}" if self.hint else "")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self._parts())


MISSING = "missing"


def _rebuilt(kind: type[InputError], parts: dict[str, Any]) -> InputError:
    return kind(**parts)


class NoAnswerError(ParaplanError):
    """A valid question without an answer: nothing fits, or the balancing is infeasible."""

    exit_status = 1
