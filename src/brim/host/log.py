"""Lines of log with fields, through the standard library.

brim logs to loggers below `brim`, and configures none of them where it is imported: a program that
imports it decides what becomes of its lines. brim's own programs write them to stderr, from the
level on that `BRIM_LOG` names. Without it a master is silent, a scheduler writes warnings, and for
the other programs Python's own default holds: warnings alone.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime

LEVELS = ("debug", "info", "warning", "error")
VARIABLE = "BRIM_LOG"
_NAME = "brim"


class LogLine:
    """A message and its fields; with any handler it reads as `round number=2 cause="w1 lost"`.

    Args:
        event: what happened, in a word.
        fields: those that are None or empty are left out of the text.

    Attributes:
        fields: for handlers that write them in another format.

    >>> print(LogLine("round", number=2, workers=3, cause="w1 lost", reason=""))
    round number=2 workers=3 cause="w1 lost"
    """

    __slots__ = ("event", "fields")

    def __init__(self, event: str, /, **fields: object) -> None:
        self.event = event
        self.fields: Mapping[str, object] = fields

    def __str__(self) -> str:
        shown_fields = {
            name: value for name, value in self.fields.items() if value not in (None, "")
        }
        return " ".join(
            [self.event, *(f"{name}={_as_text(value)}" for name, value in shown_fields.items())]
        )


def _as_text(value: object) -> str:
    """A value that ends where a space does.

    >>> _as_text(0.25), _as_text("w1"), _as_text('it said "no"')
    ('0.25', 'w1', '"it said \\\\"no\\\\""')
    """
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if text.isprintable() and not any(character in text for character in ' "='):
        return text
    return json.dumps(text, ensure_ascii=False)


class _Stamped(logging.Formatter):
    """`2026-11-23T02:51:04.123Z INFO brim.scheduler.loop cycle jobs=3`."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"


def level_in(text: str) -> str:
    """Return the level that the environment names; empty where it names none that is known.

    >>> level_in(" INFO"), level_in("loud")
    ('info', '')
    """
    word = text.strip().lower()
    return word if word in LEVELS else ""


def write_to_stderr(level: str = "", *, usual: str = "") -> None:
    """Have this program write brim's lines of log to stderr; for the `main` of a program alone.

    Args:
        level: one of `LEVELS`, from which on; empty for what the environment says.
        usual: the level where nobody says, or not in a word that is known; empty for silence.
    """
    chosen = level or level_in(os.environ.get(VARIABLE, "")) or usual
    log = logging.getLogger(_NAME)
    log.handlers.clear()  # of an earlier call
    log.propagate = False
    # Nobody hears anything: no line is even made.
    log.setLevel(chosen.upper() or logging.CRITICAL + 1)
    if chosen:
        handler = logging.StreamHandler()
        handler.setFormatter(_Stamped("%(asctime)s %(levelname)s %(name)s %(message)s"))
        log.addHandler(handler)
