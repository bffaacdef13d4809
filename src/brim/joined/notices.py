"""Leave in time: watch for the notice that a cloud or a cluster takes this host back.

Spot machines get seconds from the notice to the end. SIGTERM has an agent, or a node, leave at a
step boundary with nothing redone; so a watcher sends it. The watcher is the parent of what it
watches for: who counts the children of an agent, or ends them, never meets it. Each look is a
process as well, which is killed where it takes too long: no server or command can keep the watcher
from its work, or end it.

Sources: AWS "Spot Instance interruption notices" (IMDSv2, 2 minutes), Google "Preemptible VM
instances" (30 s), Azure "Scheduled Events" (`Preempt`, 30 s).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from brim.domain.printable import printable
from brim.errors import EnvironmentFault, SpecError
from brim.host.process import die_with_parent

INTERVAL = 1.0  # seconds between two looks: the shortest notice is 30 s
_TO_ANSWER = 2.0  # seconds of silence after which a server does not answer
_TO_LOOK = 10.0  # seconds that a look may take, whatever it is at
_LARGEST = 1 << 16  # bytes of an answer
_WORDS = 200  # characters of a notice, or of an error, that are shown
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ANSWERED = b"="  # begins the answer of a look that has come to an end
_LINK_LOCAL = "http://169.254.169.254"
_AZURE_VERSION = "2020-07-01"


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """The answer of an HTTP server."""

    status: int
    body: str = ""


Ask = Callable[[str, str, Mapping[str, str]], MetadataAnswer]  # (method, path, headers)


def aws_notice(ask: Ask) -> str:
    """Return the notice that an EC2 spot instance has; empty for none."""
    token = ask("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    headers = {"X-aws-ec2-metadata-token": token.body} if token.status == 200 else {}
    found = ask("GET", "/latest/meta-data/spot/instance-action", headers)
    return _compact(found.body) if found.status == 200 else ""


def google_notice(ask: Ask) -> str:
    """Return the notice that a spot VM of Compute Engine has; empty for none."""
    headers = {"Metadata-Flavor": "Google"}
    found = ask("GET", "/computeMetadata/v1/instance/preempted", headers)
    return "preempted" if (found.status, found.body.strip()) == (200, "TRUE") else ""


def azure_notice(ask: Ask) -> str:
    """Return the notice that a spot VM of Azure has; empty for none.

    The events of a scale set are those of all its machines.
    """
    headers = {"Metadata": "true"}
    place = f"/metadata/scheduledevents?api-version={_AZURE_VERSION}"
    found = ask("GET", place, headers)
    if found.status != 200:
        return ""
    query = "?api-version=2021-02-01&format=text"
    name = ask("GET", f"/metadata/instance/compute/name{query}", headers).body.strip()
    with contextlib.suppress(ValueError, TypeError, AttributeError):  # no events then
        for event in json.loads(found.body).get("Events", []):
            if event.get("EventType") == "Preempt" and name in event.get("Resources", []):
                return f"Preempt of {name}, not before {event.get('NotBefore') or 'now'}"
    return ""


CLOUDS: Mapping[str, tuple[Callable[[Ask], str], str, str]] = {
    "aws": (aws_notice, "AWS_EC2_METADATA_SERVICE_ENDPOINT", _LINK_LOCAL),
    "gcp": (google_notice, "GCE_METADATA_HOST", "metadata.google.internal"),
    "azure": (azure_notice, "", _LINK_LOCAL),
}


def source_of(text: str, environment: Mapping[str, str]) -> Callable[[], str]:
    """Return the look for a notice, which returns its words, or empty ones for none.

    Args:
        text: `aws`, `gcp`, `azure`, a URL that answers 200 with a text once there is a notice, the
            path of a file that is there then, or a command of several words that ends with status 0.
        environment: of this process; AWS' and Google's libraries read their servers' addresses there.

    Raises:
        SpecError: it is none of these.
    """
    if text in CLOUDS:
        notice, variable, default = CLOUDS[text]
        place = environment.get(variable) or default
        ask = _server(place if "://" in place else f"http://{place}")
        return lambda: notice(ask)
    if "://" in text:
        with contextlib.suppress(ValueError):  # no address then
            parts = urlsplit(text)
            if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
                ask = _server(f"{parts.scheme}://{parts.netloc}")
                path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
                return lambda: _told(ask("GET", path, {}))
        raise _wrong(text)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise _wrong(text, f"{text!r}: {str(error).lower()}") from None
    if len(words) > 1:
        if shutil.which(words[0]) is None:
            raise _wrong(text, f"{words[0]!r}, which is no program here")
        return lambda: _of_command(words)
    if not text or not Path(text).absolute().parent.is_dir():
        raise _wrong(text)
    return lambda: f"{text} is there" if Path(text).exists() else ""


def leave_at(text: str, work: Callable[[], int]) -> int:
    """Do some work in a child process, and send it SIGTERM once there is a notice.

    Signals that ask this process to end are passed on.

    Args:
        text: see `source_of`.
        work: ends soon after SIGTERM.

    Returns:
        The exit status of the child.

    Raises:
        SpecError: the source of notices is none.
        EnvironmentFault: it does not answer.
    """
    look = source_of(text, os.environ)
    try:
        _look(look)
    except EnvironmentFault as fault:
        hint = "\n  hint: a machine of that cloud has this server" if text in CLOUDS else ""
        raise EnvironmentFault(f"--notice {text} does not answer: {fault}{hint}") from None
    parent = os.getpid()
    # Until they can be passed on, they wait: the work may have begun by then.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        die_with_parent(parent)
        os.setpgid(0, 0)  # so that Ctrl-C, which is passed on, reaches it once
        return work()
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _: _signal(child, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return _watch(child, look)


def _watch(child: int, look: Callable[[], str]) -> int:
    ended = select.poll()
    ended.register(handle := os.pidfd_open(child), select.POLLIN)
    is_told = False
    while not ended.poll(INTERVAL * 1000.0):
        if is_told:
            continue
        notice = ""
        with contextlib.suppress(EnvironmentFault, OSError):
            notice = _look(look, unless=handle)
        if notice:
            is_told = True
            _signal(child, signal.SIGTERM)
            line = printable(f"brim: this host leaves, by notice: {notice}") + "\n"
            # Without a buffer, which would fail once more at the end: nobody reads it, or a disk is full.
            with contextlib.suppress(OSError):
                os.write(sys.stderr.fileno(), line.encode())
    os.close(handle)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if status >= 0 else 128 - status


def _look(look: Callable[[], str], *, unless: int | None = None) -> str:
    """Look for a notice in a process of its own, which is killed after `_TO_LOOK`.

    Args:
        unless: a descriptor: once it can be read from, there is no need for an answer.

    Raises:
        EnvironmentFault: there is no answer.
    """
    reader, writer = os.pipe()
    parent = os.getpid()
    process = os.fork()
    if not process:
        try:
            die_with_parent(parent)
            os.setsid()
            for number in _PASSED_ON:
                signal.signal(number, signal.SIG_DFL)
            os.write(writer, _answer_of(look))
        finally:
            os._exit(0)
    os.close(writer)
    try:
        events = select.poll()
        for descriptor in (reader, unless):
            if descriptor is not None:
                events.register(descriptor, select.POLLIN)
        found = dict(events.poll(_TO_LOOK * 1000.0))
        answer = os.read(reader, select.PIPE_BUF) if reader in found else b""
    finally:
        os.close(reader)
        _signal(process, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # what a command has started
        os.waitpid(process, 0)
    if not found:
        raise EnvironmentFault(f"no answer within {_TO_LOOK:.0f} s")
    if unless not in found and not answer.startswith(_ANSWERED):
        raise EnvironmentFault(answer.decode(errors="replace") or "the look for it has died")
    return answer.removeprefix(_ANSWERED).decode(errors="replace")


def _answer_of(look: Callable[[], str]) -> bytes:
    """Return what a look has found, or why it has found nothing, in less than `PIPE_BUF` bytes."""
    try:
        answer = _ANSWERED + look()[:_WORDS].encode(errors="replace")
    except Exception as error:  # noqa: BLE001 - servers may answer with anything
        answer = (str(error) or type(error).__name__)[:_WORDS].encode(errors="replace")
    return answer


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _server(address: str) -> Ask:
    """Return how a server is asked: straight, by no proxy, and without going where it points to."""
    parts = urlsplit(address)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection

    def ask(method: str, path: str, headers: Mapping[str, str]) -> MetadataAnswer:
        with contextlib.closing(kind(parts.netloc, timeout=_TO_ANSWER)) as connection:
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            return MetadataAnswer(answer.status, answer.read(_LARGEST).decode(errors="replace"))

    return ask


def _told(answer: MetadataAnswer) -> str:
    return _compact(answer.body) if answer.status == 200 else ""


def _of_command(words: list[str]) -> str:
    """Return the first words that a command prints where it ends with status 0.

    What it leaves running, with its output open, does not count.
    """
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        output, events, printed = process.stdout.fileno(), select.poll(), b""
        events.register(output, select.POLLIN)
        events.register(handle := os.pidfd_open(process.pid), select.POLLIN)
        while found := dict(events.poll()):
            if output in found:
                chunk = os.read(output, _LARGEST)
                printed = (printed + chunk)[:_LARGEST]
                if not chunk:
                    events.unregister(output)
            if handle in found:
                break
        os.close(handle)
        if process.wait():
            return ""
    return _compact(printed.decode(errors="replace")) or shlex.join(words)


def _compact(text: str) -> str:
    return " ".join(text.split())[:_WORDS]


def _wrong(text: str, actual: str = "") -> SpecError:
    return SpecError(
        "--notice",
        got=actual or repr(text),
        need="aws, gcp, azure, a URL, a file in a folder that is there, or a command of several words",
        hint="--notice aws, or --notice /run/brim/leave",
    )
