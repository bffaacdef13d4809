"""Identities of the processes of a run, which all follow from the secret of the run's workers.

Who has the secret makes the same authority of it as all others, and issues itself a certificate. So
nothing has to be handed out, kept in a file, or handed over where a master moves. Another run's
authority is another one.
"""

from __future__ import annotations

import ssl
import threading
from functools import lru_cache

from brim.errors import SpecError
from brim.host.clock import wall
from brim.host.installation import command_for
from brim.wire.identity import OUT_OF_TIME, RENEW_AFTER, Identity, client_context, server_context
from brim.wire.listening import is_loopback

MASTER, AGENT, WORKER = "master", "agent", "worker"  # the roles in a run
_MOST_KEPT = 64  # identities: a scheduler asks the masters of many runs


class RunIdentity:
    """The identity of this process in a run, made where it is first needed and renewed in time.

    It may be used from any thread.

    Args:
        secret: of the run's workers.
        role: that this process may serve as.
    """

    def __init__(self, secret: bytes, role: str) -> None:
        self._secret, self._role = secret, role
        self._lock = threading.Lock()
        self._made_at = 0.0
        self._identity: Identity | None = None
        self._server: ssl.SSLContext | None = None
        self._client: ssl.SSLContext | None = None

    def make_ready(self) -> None:
        """Make all of it now, so that later calls do not wait."""
        _ = self.server, self.client

    @property
    def identity(self) -> Identity:
        """Return the key and the certificates that this process shows now."""
        with self._lock:
            return self._fresh()

    @property
    def server(self) -> ssl.SSLContext:
        """Return the context of an end that is called now: callers are of the run, or get nothing."""
        with self._lock:
            identity = self._fresh()
            self._server = self._server or server_context(identity)
            return self._server

    @property
    def client(self) -> ssl.SSLContext:
        """Return the context of an end that calls now; it says which `server_name` it calls."""
        with self._lock:
            identity = self._fresh()
            self._client = self._client or client_context(identity.authority, identity)
            return self._client

    def _fresh(self) -> Identity:
        # By the time of day, by which others read a certificate, and which may jump.
        if self._identity is None or abs(wall() - self._made_at) > RENEW_AFTER:
            self._server = self._client = None
            self._made_at, self._identity = wall(), _issue(self._secret, self._role)
        return self._identity


@lru_cache(maxsize=_MOST_KEPT)
def run_identity(secret: bytes, role: str) -> RunIdentity:
    """Return the identity of this process in the run whose workers have this secret.

    Args:
        role: that it may serve as.
    """
    return RunIdentity(secret, role)


def is_encrypted(host: str, *, insecure: bool) -> bool:
    """Return whether the streams are, of workers that listen at this address of their host.

    Args:
        insecure: the run is.
    """
    return not (insecure or is_loopback(host))


def stranger_of(error: BaseException) -> str:
    """Return why the process that was called is not of this run; empty where none has answered.

    Args:
        error: that the call ended with.
    """
    if not isinstance(error, ssl.SSLError) or isinstance(
        error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError
    ):
        return ""
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in OUT_OF_TIME:
        return "its certificate is not good at the time of this host: are the clocks of both right?"
    reason = getattr(error, "reason", "") or error  # one that Python itself raises has none
    return f"it shows no certificate of this run ({reason})"


def _issue(secret: bytes, role: str) -> Identity:
    """Raises SpecError where the package that makes certificates is not installed."""
    try:
        from brim.wire.authority import Authority
    except ModuleNotFoundError as error:
        raise SpecError(
            error.name or "cryptography",
            got="no such package",
            need="the extra 'train'",
            hint=command_for("train"),
        ) from error
    return Authority.derived_from(secret).issue(role)
