"""Proofs that both ends of a connection have the same secret, which neither says.

Each end sends an HMAC of the connection's purpose. A stranger that listens in the place of a
process that has died learns nothing that it can use elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac

PROOF_BYTES = hashlib.sha256().digest_size


def derived(token: str, use: str) -> bytes:
    """Return the secret for one use of a token, which does not tell the token.

    >>> derived("t", "workers") == derived("t", "workers"), derived("t", "workers") == derived("t", "master")
    (True, False)
    """
    return _hmac(token.encode(), [use.encode()])


def workers_secret(token: str) -> bytes:
    """Return the secret by which the workers of a run know each other, and their run's files."""
    return derived(token, "workers")


def proof(secret: bytes, *words: bytes) -> bytes:
    """Return a proof that its sender has the secret and means these words, in this order."""
    return _hmac(secret, words)


def is_proof(proof_given: bytes, secret: bytes, *words: bytes) -> bool:
    """Return whether `proof_given` is the proof of these words.

    The time of the comparison does not tell how much of it is right.

    >>> is_proof(proof(b"s", b"a", b"b"), b"s", b"a", b"b"), is_proof(proof(b"s", b"ab"), b"s", b"a", b"b")
    (True, False)
    """
    return hmac.compare_digest(proof_given, proof(secret, *words))


def _hmac(key: bytes, words: tuple[bytes, ...] | list[bytes]) -> bytes:
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for word in words:
        digest.update(len(word).to_bytes(4, "little") + word)
    return digest.digest()
