"""Small languages of clauses, such as `add 2 at step 60`.

Each form is both read and written. Pure.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from brim.domain.quantities import format_duration, parse_duration
from brim.errors import SpecError, did_you_mean

K = TypeVar("K", bound=enum.StrEnum)


class Clauses(Generic[K]):
    """One language.

    Args:
        field: what an error calls the text.
        forms: by kind; `{name}` is a value.
        example: a value for every name, for hints.
        numbers: names of values that are whole numbers.
        spans: names of values that are durations; the others are words.

    >>> Kind = enum.StrEnum("Kind", {"ADD": "add"})
    >>> language = Clauses("--faults", {Kind.ADD: "add {count} for {long}"}, {"count": "2", "long": "5s"},
    ...                    numbers=("count",), spans=("long",))
    >>> [(str(kind), words) for kind, _, words in language.read("add 3 for 2m; add 1 for 1s")]
    [('add', {'count': '3', 'long': '2m'}), ('add', {'count': '1', 'long': '1s'})]
    >>> language.write(Kind.ADD, count=3, long=120.0)
    'add 3 for 2m'
    """

    def __init__(
        self,
        field: str,
        forms: Mapping[K, str],
        example: Mapping[str, str],
        *,
        numbers: tuple[str, ...],
        spans: tuple[str, ...],
    ) -> None:
        self.field, self._forms, self._example = field, forms, example
        self._numbers, self._spans = numbers, spans
        self._patterns = {kind: self._pattern(form) for kind, form in forms.items()}

    def _pattern(self, form: str) -> re.Pattern[str]:
        for name in self._example:
            read = (
                r"\d{1,9}" if name in self._numbers else r".+?" if name in self._spans else r"\S+"
            )
            form = form.replace(f"{{{name}}}", f"(?P<{name}>{read})")
        return re.compile(form)

    def read(self, text: str) -> Iterator[tuple[K, str, dict[str, str]]]:
        """Clauses separated by `;`, in the order written: kind, clause, and its words by name.

        Raises:
            SpecError: a clause that says nothing this language can say; the message quotes that
                clause.
        """
        for clause in (" ".join(clause.split()) for clause in text.split(";")):
            if clause:
                yield self._clause(clause)

    def _clause(self, clause: str) -> tuple[K, str, dict[str, str]]:
        for kind, pattern in self._patterns.items():
            if found := pattern.fullmatch(clause.lower()):
                return kind, clause, found.groupdict()
        verbs = tuple(dict.fromkeys(form.split()[0] for form in self._forms.values()))
        verb = clause.split()[0].lower()
        examples = [
            self.example(kind) for kind, form in self._forms.items() if form.split()[0] == verb
        ]
        if not examples:
            need = "a clause that begins with " + ", ".join(verbs[:-1]) + f" or {verbs[-1]}"
            raise SpecError(self.field, got=repr(clause), need=need, hint=did_you_mean(verb, verbs))
        need = "a clause like " + " or ".join(map(repr, examples))
        raise SpecError(
            self.field, got=repr(clause), need=need, hint=f'{self.field} "{examples[0]}"'
        )

    def example(self, kind: K) -> str:
        """A clause of this kind."""
        return self._forms[kind].format(**self._example)

    def span(self, text: str | None, clause: str) -> float:
        """The seconds that a word of `clause` says; 0 where it says nothing."""
        return parse_duration(text, field=f"{self.field} {clause!r}") if text else 0.0

    def write(self, kind: K, **values: object) -> str:
        """The clause that `read` reads back as these values.

        Spans are seconds, or words that stand for some.
        """
        words = {
            name: _duration(value) if name in self._spans and isinstance(value, float) else value
            for name, value in values.items()
        }
        return self._forms[kind].format(**words)


def _duration(seconds: float) -> str:
    return ("-" if seconds < 0 else "") + format_duration(abs(seconds))
