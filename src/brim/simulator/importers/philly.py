"""Reads the job log of Microsoft's Philly clusters: one long JSON list of jobs.

Source: https://github.com/msr-fiddle/philly-traces
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brim.errors import SpecError
from brim.simulator.importers.clock import LogClock
from brim.simulator.importers.lines import OPTION, LogFile
from brim.simulator.past_jobs import Log, PastJob, PastRun
from brim.simulator.text_files import opened

_CHUNK = 1 << 20  # characters read at once
_MOST_JOB = 1 << 24  # characters of one job
_BLANK = re.compile(r"[\s,]*")
_HINT = (
    "cluster_job_log of trace-data.tar.gz: [{jobid, vc, user, submitted_time, attempts, status}, …]"
)


def read_philly(path: Path, log: Log, clock: LogClock) -> None:
    """Add the jobs of a file to `log`.

    Raises:
        SpecError: the file is not a list of such jobs.
    """
    log.assumed.append("devices are GPUs")
    for number, record in enumerate(_records(LogFile(path, "a JSON list of jobs", _HINT)), start=1):
        place = f"{OPTION} {path}, job {number}"
        runs = []
        submitted = _time(record, "submitted_time", place, clock, earliest=None)
        attempts = _list(record, "attempts", place)
        for attempt in attempts:
            start = _time(attempt, "start_time", place, clock, earliest=submitted)
            end = _time(attempt, "end_time", place, clock, earliest=start)
            if start is None or (end is None and attempt is not attempts[-1]):
                log.odd["attempts left out that have no start, or no end before the next one"] += 1
                continue
            gpus = sum(len(_list(node, "gpus", place)) for node in _list(attempt, "detail", place))
            runs.append(PastRun(start, end, gpus))
        log.add(
            PastJob(
                id=_text(record, "jobid", place),
                user=_text(record, "user", place),
                tenant=_text(record, "vc", place) or "default",
                submitted=submitted,
                runs=tuple(runs),
                state=_text(record, "status", place),
            )
        )


def _records(source: LogFile) -> Iterator[Any]:
    """Return each value of a JSON list, which need not fit into memory."""
    decode = json.JSONDecoder().raw_decode
    with opened(source.path, option=OPTION, need=source.need, hint=source.hint) as file:
        text = file.read(_CHUNK)
        opening = re.match(r"\s*\[", text)
        if opening is None:
            raise SpecError(
                f"{OPTION} {source.path}", got=repr(text[:20]), need=source.need, hint=source.hint
            )
        place = opening.end()
        while True:
            blank = _BLANK.match(text, place)
            place = blank.end() if blank else place
            if text.startswith("]", place):
                return
            try:
                record, place = decode(text, place)
            except (json.JSONDecodeError, RecursionError) as error:
                chunk = file.read(_CHUNK) if len(text) - place < _MOST_JOB else ""
                if chunk:
                    text, place = text[place:] + chunk, 0
                    continue
                raise SpecError(
                    f"{OPTION} {source.path}", got=_fault_in_words(error, text), need=source.need,
                    hint=source.hint,
                ) from None  # fmt: skip
            yield record


def _fault_in_words(error: json.JSONDecodeError | RecursionError, text: str) -> str:
    if isinstance(error, RecursionError):
        return "lists in lists in lists"
    rest = text[error.pos : error.pos + 20]
    return f"{error.msg} at {rest!r}" if rest else "a list without an end"


def _value(record: Any, key: str, place: str) -> Any:
    if not isinstance(record, dict) or key not in record:
        actual = (
            f"the keys {', '.join(record)[:80]}" if isinstance(record, dict) else repr(record)[:80]
        )
        raise SpecError(place, got=actual, need=f"an object with {key}", hint=_HINT)
    return record[key]


def _text(record: Any, key: str, place: str) -> str:
    value = _value(record, key, place)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise SpecError(f"{place}, {key}", got=repr(value)[:80], need="a text", hint=_HINT)
    return value


def _list(record: Any, key: str, place: str) -> list[Any]:
    value = _value(record, key, place)
    if not isinstance(value, list):
        raise SpecError(f"{place}, {key}", got=repr(value)[:80], need="a list", hint=_HINT)
    return value


def _time(
    record: Any, key: str, place: str, clock: LogClock, *, earliest: float | None
) -> float | None:
    text = _text(record, key, place)

    def fault(need: str) -> SpecError:
        return SpecError(f"{place}, {key}", got=repr(text), need=need, hint=_HINT)

    return clock.parse(text, fault, earliest=earliest)
