"""The tokens of a scheduler.

The administrator's is in a file of its own, and so is the one that is good for metrics alone. Of the
tenants' only the digests are kept, those of their secrets: the fingerprint of the cluster's
authority, behind the dot, is for clients alone.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.rights import Caller
from brim.errors import EnvironmentFault, SpecError, did_you_mean
from brim.storage.contact import keep_token, metrics_token_of, token_of
from brim.storage.files import write_whole
from brim.wire.identity import split_token, token_with

_FILE = "tenant-tokens.json"
_SCHEME = "Bearer "


class Keys:
    """The callers of a scheduler, by their tokens.

    Args:
        state_dir: has the administrator's token, and the digests of the tenants'.
        fingerprint: of the cluster's authority; a token that was kept with another, or none, gets it.
        tenants: those that the cluster has now: the token of one that it no longer has is worth
            nothing.

    Raises:
        EnvironmentFault: the digests cannot be read.
        OSError: the disk takes no token.
    """

    def __init__(
        self, state_dir: Path, fingerprint: str, *, tenants: Callable[[], Collection[str]]
    ) -> None:
        self._path, self._tenants, self._fingerprint = state_dir / _FILE, tenants, fingerprint
        admin_token = token_of(state_dir)
        self.administrator = token_with(split_token(admin_token)[0], fingerprint)
        if self.administrator != admin_token:
            keep_token(state_dir, self.administrator)
        try:
            self._metrics = metrics_token_of(state_dir)
        except OSError:  # a scheduler comes up on a full disk, too: this one nobody gets to know
            self._metrics = secrets.token_hex(16)
        try:
            self._digests = msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            self._digests = {}
        except (OSError, *UNDECODABLE) as error:
            raise EnvironmentFault(
                f"cannot read {self._path}: {error}\n  hint: remove it, and give tenants new "
                "tokens: brim token TENANT"
            ) from error

    def caller(self, authorization: str, *, origin: str) -> Caller | None:
        """Return the owner of this token, or None. Every token is compared, in constant time.

        Args:
            authorization: the header.
            origin: where the request comes from.
        """
        token = _digest_of_header(authorization)
        found = None
        if hmac.compare_digest(token, _digest(self.administrator)):
            found = Caller(tenant=None, origin=origin)
        for tenant, digest in self._digests.items():
            if hmac.compare_digest(token, digest) and tenant in self._tenants():
                found = Caller(tenant=tenant, origin=origin)
        return found

    def may_read_metrics(self, authorization: str) -> bool:
        """Return whether a token is the administrator's, or the one that is good for metrics."""
        token = _digest_of_header(authorization)
        good = [_digest(self.administrator), _digest(self._metrics)]
        found = [hmac.compare_digest(token, digest) for digest in good]  # both, in constant time
        return True in found

    def give(self, tenant: str) -> str:
        """A new token for a tenant; the one that it had is worth nothing from now on.

        Raises:
            SpecError: the cluster has no such tenant.
            EnvironmentFault: the disk does not take it.
        """
        tenants_declared = sorted(self._tenants())
        if tenant not in tenants_declared:
            hint = (
                did_you_mean(tenant, tenants_declared)
                if tenants_declared
                else "name it in cluster.yaml, then: brim apply cluster.yaml"
            )
            raise SpecError("TENANT", got=repr(tenant), need="a tenant of this cluster", hint=hint)
        secret = secrets.token_hex(16)
        self._keep({**self._digests, tenant: _digest(secret)})
        return token_with(secret, self._fingerprint)

    def revoke(self, tenant: str) -> None:
        """Let no token of a tenant be worth anything; once is as good as twice.

        Raises:
            EnvironmentFault: the disk does not take it.
        """
        self._keep({name: digest for name, digest in self._digests.items() if name != tenant})

    def _keep(self, digests: dict[str, str]) -> None:
        try:
            write_whole(self._path, msgspec.json.encode(digests), mode=0o600, is_sole_writer=True)
        except OSError as error:
            raise EnvironmentFault(f"cannot write {self._path}: {error.strerror}") from error
        self._digests = digests


def _digest_of_header(authorization: str) -> str:
    """Return the digest of the token in a header; empty where there is none."""
    if not authorization.startswith(_SCHEME):
        return ""
    return _digest(authorization.removeprefix(_SCHEME))


def _digest(token: str) -> str:
    """Return the digest of a token's secret.

    It is 128 bits of chance: no salt and no slowness would make it harder to find.
    """
    return hashlib.sha256(split_token(token)[0].encode()).hexdigest()
