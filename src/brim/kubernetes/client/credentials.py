"""Proofs by which an API server knows a client: tokens, passwords, certificates, plugins."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

import msgspec

from brim.decoding import UNDECODABLE
from brim.errors import EnvironmentFault, SpecError
from brim.host.clock import monotonic, wall
from brim.host.untrusted import read_regular

_MAX_TOKEN_BYTES = 1 << 20  # bytes of a token, and of what a plugin prints
_REREAD = 60.0  # seconds after which the file of a token is read again: a kubelet renews it
_EARLY = 10.0  # seconds before a token expires that another is got: clocks differ
_PLUGIN = 60.0  # seconds that a plugin may take: some ask a server
_KILLED = 5.0  # seconds that a plugin which was killed may take to end
_LAST_WORDS = 500  # characters of what a plugin says of its failure
_INFO = "KUBERNETES_EXEC_INFO"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof that a client shows.

    Args:
        authorization: the header of that name; empty: none.
        certificate: with its chain, PEM; empty: none.
        key: of the certificate, PEM.
    """

    authorization: str = ""
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)

    def __repr__(self) -> str:
        return "Proof(…)"  # it is a secret, and errors and logs have arguments in them


class Credentials(Protocol):
    """Gives the proof to show now."""

    async def proof(self, *, renewed: bool = False) -> Proof:
        """Return the proof to show with the next request.

        Args:
            renewed: the server has refused the last one, so get another if there is one.

        Raises:
            EnvironmentFault: there is none now.
        """
        ...


class FixedProof:
    """A proof that stays the same.

    Args:
        proof: to show.
    """

    def __init__(self, proof: Proof) -> None:
        self._proof = proof

    async def proof(self, *, renewed: bool = False) -> Proof:
        return self._proof


class TokenFromFile:
    """A token in a file that is renewed, as that of a service account is.

    Args:
        path: of the file.
        certificate: shown besides the token.
        now: monotonic seconds.
    """

    def __init__(
        self, path: Path, certificate: Proof | None = None, *, now: Callable[[], float] = monotonic
    ) -> None:
        self._path, self._certificate, self._now = path, certificate or Proof(), now
        self._token = ""
        self._reload_at = -math.inf

    async def proof(self, *, renewed: bool = False) -> Proof:
        if renewed or self._now() >= self._reload_at:
            self._read()
        return Proof(bearer(self._token), self._certificate.certificate, self._certificate.key)

    def _read(self) -> None:
        try:
            # A kubelet's is a link to a link: whoever could put another there has the pod.
            token = (
                read_regular(self._path.resolve(), at_most=_MAX_TOKEN_BYTES).decode("ascii").strip()
            )
            if not token.isprintable():
                raise ValueError("it has line breaks in it")
        except (OSError, ValueError) as error:
            if not self._token:
                raise EnvironmentFault(
                    f"cannot read the token in {self._path}: {error}", retryable=True
                ) from error
            _log.warning("the token in %s cannot be read again: %s", self._path, error)
        else:
            self._token = token or self._token
        self._reload_at = self._now() + _REREAD


class ExecEnvironment(msgspec.Struct, frozen=True):
    """A variable of a plugin's environment."""

    name: str
    value: str


class ExecPlugin(msgspec.Struct, frozen=True, rename="camel"):
    """A command that prints credentials, as a kubeconfig names it under `exec`.

    Args:
        command: a program on the path, or the path of one.
        api_version: of its output.
        env: variables besides those of this process.
        install_hint: for people without it.
        interactive_mode: `Always` where it must ask somebody.
        provide_cluster_info: it is told about the cluster.
    """

    command: str
    api_version: str = "client.authentication.k8s.io/v1"
    args: tuple[str, ...] | None = ()
    env: tuple[ExecEnvironment, ...] | None = ()
    install_hint: str = ""
    interactive_mode: str = "IfAvailable"
    provide_cluster_info: bool = False


class _ExecStatus(msgspec.Struct, frozen=True, rename="camel"):
    expiration_timestamp: datetime | None = None
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str = ""
    status: _ExecStatus | None = None


class PluginProof:
    """Credentials that a command prints; it is run again when they expire, or are refused.

    Args:
        exec_plugin: the command.
        cluster: what it is told about the cluster where it wants that.
        environment: variables that it has besides its own.
        timeout: seconds that it may take.

    Raises:
        SpecError: it would have to ask somebody.
    """

    def __init__(
        self,
        exec_plugin: ExecPlugin,
        *,
        cluster: Mapping[str, object],
        environment: Mapping[str, str],
        timeout: float = _PLUGIN,
    ) -> None:
        if exec_plugin.interactive_mode == "Always":
            raise SpecError(
                "exec.interactiveMode",
                got="Always",
                need="IfAvailable or Never: brim cannot answer a prompt",
                hint="use a service account's token: kubectl create token NAME",
            )
        self._plugin, self._environment, self._timeout = exec_plugin, environment, timeout
        spec: dict[str, object] = {"interactive": False}
        if exec_plugin.provide_cluster_info:
            spec["cluster"] = cluster
        exec_info = {"apiVersion": exec_plugin.api_version, "kind": "ExecCredential", "spec": spec}
        self._exec_info = msgspec.json.encode(exec_info).decode()
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
        self._locks = WeakKeyDictionary()  # a Lease is held in a thread of its own
        self._proof: Proof | None = None
        self._expires = math.inf

    async def proof(self, *, renewed: bool = False) -> Proof:
        refused = self._proof if renewed else None
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with lock:  # many requests wait for one run of it
            if self._proof is None or self._proof is refused or wall() >= self._expires - _EARLY:
                await self._run()
            assert self._proof is not None
            return self._proof

    async def _run(self) -> None:
        printed = await self._printed()
        try:
            credential = msgspec.json.decode(printed, type=_ExecCredential)
        except UNDECODABLE as error:
            raise self._fault(f"printed no ExecCredential: {error}") from error
        if credential.api_version != self._plugin.api_version:
            raise self._fault(
                f"printed {credential.api_version}, and not {self._plugin.api_version}"
            )
        status = credential.status or _ExecStatus()
        if not status.token and not (status.client_certificate_data and status.client_key_data):
            raise self._fault("printed neither a token nor a certificate with its key")
        if not (status.token.isascii() and status.token.isprintable()):
            raise self._fault("printed a token with line breaks or the like in it")
        self._proof = Proof(
            bearer(status.token),
            status.client_certificate_data.encode(),
            status.client_key_data.encode(),
        )
        expires = status.expiration_timestamp
        self._expires = expires.timestamp() if expires else math.inf

    async def _printed(self) -> bytes:
        own_variables = {variable.name: variable.value for variable in self._plugin.env or ()}
        command = self._plugin.command
        try:
            process = await asyncio.create_subprocess_exec(
                command,
                *(self._plugin.args or ()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**self._environment, **own_variables, _INFO: self._exec_info},
            )
        except (OSError, ValueError) as error:
            hint = f"; {self._plugin.install_hint}" if self._plugin.install_hint else ""
            raise EnvironmentFault(
                f"cannot run {command} for credentials: {error}{hint}"
            ) from error
        try:
            async with asyncio.timeout(self._timeout):
                output, err, _ = await asyncio.gather(
                    _all_of(process), _last_words(process.stderr), process.wait()
                )
        except TimeoutError:
            raise self._fault(f"did not end within {self._timeout:.0f} s") from None
        finally:
            if process.returncode is None:
                await _end(process)
        if len(output) > _MAX_TOKEN_BYTES:
            raise self._fault(f"printed more than {_MAX_TOKEN_BYTES >> 20} MiB")
        if process.returncode:
            raise self._fault(f"ended with {process.returncode}: {err}")
        return output

    def _fault(self, problem: str) -> EnvironmentFault:
        return EnvironmentFault(
            f"the command {os.path.basename(self._plugin.command)}, which gives credentials, {problem}",
            retryable=True,
        )


async def _all_of(process: asyncio.subprocess.Process) -> bytes:
    """Return all output of a process; one that prints too much is killed."""
    printed = bytearray()
    assert process.stdout is not None
    while chunk := await process.stdout.read(_MAX_TOKEN_BYTES):
        if len(printed) <= _MAX_TOKEN_BYTES:
            printed += chunk
        if len(printed) > _MAX_TOKEN_BYTES and process.returncode is None:
            process.kill()
    return bytes(printed)


async def _last_words(stream: asyncio.StreamReader | None) -> str:
    """Return the last characters of an output."""
    last = b""
    while chunk := await stream.read(_MAX_TOKEN_BYTES) if stream else b"":
        last = (last + chunk)[-4 * _LAST_WORDS :]
    return last.decode(errors="replace").strip()[-_LAST_WORDS:]


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_KILLED):
            await process.wait()


def bearer(token: str) -> str:
    """Return the header Authorization with a token; empty where there is none.

    Raises:
        SpecError: no header can have it. The token itself is not said.

    >>> bearer("abc"), bearer("")
    ('Bearer abc', '')
    """
    if not (token.isascii() and token.isprintable()):
        raise SpecError(
            "token for the API server",
            got="one with line breaks or other characters that no header has",
            need="printable ASCII characters",
        )
    return f"Bearer {token}" if token else ""


def basic(user: str, password: str) -> str:
    """Return the header Authorization with a password.

    >>> basic("u", "p")
    'Basic dTpw'
    """
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
