"""The certificate of services' fronts: two files of the administrator's, as the one that haproxy reads."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable

from brim.domain.services import ServiceRules
from brim.errors import SpecError

_MOST_BYTES = 1 << 20  # of a certificate with its chain
_OTHERS = 0o077  # the rights of other accounts


class FrontCertificate:
    """The certificate that the rules name now, read again once a file of it has changed.

    Args:
        rules: for services now.
    """

    def __init__(self, rules: Callable[[], ServiceRules]) -> None:
        self._rules = rules
        self._read: tuple[object, bytes] | None = None

    def pem(self) -> bytes:
        """Return the certificate, its chain and its key; empty: fronts speak plain HTTP.

        Raises:
            SpecError: one of the files cannot be used.
        """
        rules = self._rules()
        if not rules.certificate:
            return b""
        places = (rules.certificate, rules.key or rules.certificate)
        state = (places, *map(_state_of, places))
        if self._read is None or self._read[0] != state:
            self._read = state, _pem_of(*places)
        return self._read[1]


def check_certificate(rules: ServiceRules) -> None:
    """Raises SpecError where fronts could not use the certificate that these rules name."""
    FrontCertificate(lambda: rules).pem()


def _pem_of(certificate: str, key: str) -> bytes:
    content = _content_of(certificate, "certificate", is_secret=certificate == key)
    if certificate != key:
        content += b"\n" + _content_of(key, "key", is_secret=True)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ValueError) as error:  # ssl's error is one of the system's
        need = "a certificate in PEM, and its own key without a password"
        got = f"files that do not fit ({error})"
        raise SpecError("services: certificate", got=got, need=need) from None
    return content


def _content_of(path: str, name: str, *, is_secret: bool) -> bytes:
    field = f"services: {name}"
    try:
        # Without a wait for the writer of a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _check_file(path, os.fstat(descriptor), field=field, is_secret=is_secret)
            return os.pread(descriptor, _MOST_BYTES, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        got = f"{path}, which cannot be read: {error.strerror}"
        need = "a file on the scheduler's host that its account can read"
        raise SpecError(field, got=got, need=need) from None


def _check_file(path: str, status: os.stat_result, *, field: str, is_secret: bool) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
        raise SpecError(field, got=path, need="a file in PEM, of at most 1 MiB")
    if is_secret and (status.st_mode & _OTHERS or status.st_uid not in (0, os.geteuid())):
        raise SpecError(
            field,
            got=f"{path} of mode {status.st_mode & 0o777:o}, of account {status.st_uid}",
            need="a file of root or the scheduler's account that no other can read",
            hint=f"chmod 600 {path}",
        )


def _state_of(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode, status.st_uid)
