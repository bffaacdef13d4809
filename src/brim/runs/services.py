"""An online service in a file, service.yaml, and errors with their places in it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.domain.channels import parse_subscription
from brim.domain.demand import DAY
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.names import check_name
from brim.domain.quantities import parse_duration
from brim.domain.services import GRACE, NOTICE, REQUESTS, Service
from brim.domain.submission import Submission, as_service, check_spec, fingerprint
from brim.domain.workload import Priority
from brim.errors import SpecError, did_you_mean
from brim.runs.options import parse_env
from brim.runs.starting import bundle_of, notes_on_python
from brim.runs.training_file import check_command

if TYPE_CHECKING:
    from brim.wire.cluster import Submit

KEYS = (
    "name", "command", "port", "replicas", "load", "per-replica", "health", "grace", "env", "notice",
    "day",
)  # fmt: skip
_NEEDED = ("command", "port", "replicas", "per-replica")
_EXAMPLE = """command: python server.py
  port: 8000
  replicas: 1:4
  per-replica: 50"""


def service_request(
    path: Path,
    *,
    tenant: str,
    key: str = "",
    notify: tuple[str, ...] = (),
    warn: Callable[[str], None],
) -> Submit:
    """Return the request for the service that a file describes, with its code.

    Args:
        tenant: whose quota it uses.
        key: of the submission.
        notify: channels on which it is reported, with events.
        warn: is told what the service visibly needs and is not sent with it.

    Raises:
        SpecError: something of it is wrong, with the place in the file.
    """
    from brim.storage.bundles import digest_of
    from brim.storage.yaml_file import read_yaml
    from brim.wire.cluster import Submit

    content = read_yaml(path, words=True)
    try:
        name, spec = service_of(content, default_name=path.stem)
        check_command(spec.command)
    except SpecError as error:
        raise _in_file(error, str(path)) from None
    for note in notes_on_python(spec):
        warn(note)
    bundle = bundle_of(spec, warn=warn)
    spec = replace(spec, bundle=digest_of(bundle) if bundle else "")
    submission = Submission(
        spec=spec,
        fingerprint=fingerprint(spec, bundle),
        tenant=tenant,
        priority=Priority.ONLINE,
        notify=tuple(map(parse_subscription, notify)),
    )
    return Submit(submission=as_service(submission), name=name, key=key, bundle=bundle)


def service_of(content: object, *, default_name: str = "service") -> tuple[str, JobSpec]:
    """Return the name of a service, and its job, from the decoded content of a file.

    Args:
        content: whose values are as they were written.
        default_name: where the file has none.

    Raises:
        SpecError: with the key.

    >>> lines = {"command": "python s.py", "port": "8000", "replicas": "1:4", "per-replica": "50"}
    >>> name, spec = service_of(lines)
    >>> name, spec.command, spec.service.maximum, spec.service.load
    ('service', ('python', 's.py'), 4, 'requests')
    """
    if not isinstance(content, dict):
        raise SpecError("", got=repr(content)[:40], need="NAME: VALUE lines", hint=_EXAMPLE)
    for word in content:
        if word not in KEYS:
            hint = did_you_mean(str(word), KEYS)
            raise SpecError(
                str(word)[:60], got=repr(word)[:60], need=f"one of {', '.join(KEYS)}", hint=hint
            )
    for needed in _NEEDED:
        if needed not in content:
            raise SpecError(
                needed, got="nothing", need="this key", hint=f"for example:\n  {_EXAMPLE}"
            )
    values = _Values(content)
    name = values.text("name", default_name)
    check_name(name, field="name", hint="name: web")
    replicas = WorkerRange.parse(values.text("replicas"), field="replicas")
    service = Service(
        port=int(values.number("port", whole=True)),
        minimum=replicas.minimum,
        maximum=replicas.maximum,
        load=values.text("load", REQUESTS),
        per_replica=values.number("per-replica"),
        health=values.text("health", ""),
        notice=values.seconds("notice", NOTICE),
        day=values.seconds("day", DAY),
    )
    spec = JobSpec(
        command=values.command(),
        directory=os.getcwd(),
        env=values.env(),
        workers=WorkerRange(minimum=service.minimum, maximum=service.maximum),
        restart=True,
        grace=values.seconds("grace", GRACE),
        spares=0,
        service=service,
    )
    check_spec(spec)
    return name, spec


class _Values:
    """The values of a file, each read as its key says."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content

    def text(self, key: str, default: str = "") -> str:
        value = self._content.get(key, default)
        if not isinstance(value, str):
            raise SpecError(key, got=_kind(value), need="one value")
        return value

    def number(self, key: str, *, whole: bool = False) -> float:
        text = self.text(key)
        try:
            return int(text) if whole else float(text)
        except ValueError:
            need = "a whole number" if whole else "a number"
            raise SpecError(key, got=repr(text[:60]), need=need) from None

    def seconds(self, key: str, default: float) -> float:
        if key not in self._content:
            return default
        return parse_duration(self.text(key), field=key)

    def command(self) -> tuple[str, ...]:
        value = self._content["command"]
        if isinstance(value, str):
            try:
                words = shlex.split(value)
            except ValueError as error:
                need = "a command, quoted as in a shell"
                raise SpecError("command", got=f"{value!r} ({error})", need=need) from None
        elif isinstance(value, list) and all(isinstance(word, str) for word in value):
            words = value
        else:
            raise SpecError(
                "command", got=_kind(value), need="a command: a text, or a list of words"
            )
        if not words:
            raise SpecError("command", got="nothing", need="a command", hint="python server.py")
        return tuple(words)

    def env(self) -> dict[str, str]:
        value = self._content.get("env", {})
        if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
            return parse_env(tuple(f"{name}={text}" for name, text in value.items()), os.environ)
        if isinstance(value, list) and all(isinstance(text, str) for text in value):
            return parse_env(tuple(value), os.environ)
        raise SpecError("env", got=_kind(value), need="NAME: VALUE pairs", hint="env: {MODEL: /m}")


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "NAME: VALUE pairs"
    return "a list" if isinstance(value, list) else repr(value)[:40]


def _in_file(error: SpecError, path: str) -> SpecError:
    field = f"{path}: {error.field}" if error.field else path
    return SpecError(field, got=error.got, need=error.need, hint=error.hint)
