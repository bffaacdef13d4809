"""The rules by which one of several processes holds a Lease of Kubernetes. Pure.

As client-go has them: the process whose name is in the object holds the Lease, for as long as it
renews it. The API server takes a write only where the object has not changed since it was read.

Clocks of two hosts are never compared. A candidate counts from the moment at which it itself saw
the object change: only after `duration` without another change is the Lease free. The holder counts
from the moment before it *sent* its last renewal that the server took: `renew_within` later it holds
no longer. The server took that renewal after it was sent, and others saw it later still; so the
holder has stopped `duration - renew_within` seconds before another may begin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """The times of a Lease, in seconds.

    Args:
        duration: without a renewal after which it is free.
        renew_within: without a renewal after which its holder has stopped; less than `duration`.
        retry: between two attempts; less than `renew_within`.
    """

    duration: float = 15.0
    renew_within: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        assert 0 < self.retry < self.renew_within < self.duration, self


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSeen:
    """The object as it was read.

    Args:
        version: its `resourceVersion`.
        holder: the identity in it; empty: it was released.
        duration: seconds for which its holder has it without a renewal; 0: it does not say.
        transitions: how often it has passed from one holder to another.
        acquired: when its holder got it, as its holder wrote that.
        renewed: when it was renewed, as its holder wrote that: a change, and never a time.
    """

    version: str
    holder: str
    duration: float = 0.0
    transitions: int = 0
    acquired: str = ""
    renewed: str = ""

    @property
    def record(self) -> tuple[str, float, int, str, str]:
        """The part that its holder has written: others may have changed the rest."""
        return self.holder, self.duration, self.transitions, self.acquired, self.renewed


@dataclass(frozen=True, slots=True)
class LookAtLease:
    """Read the object, and tell `looked`."""


@dataclass(frozen=True, slots=True)
class WaitForLease:
    """Do nothing until then."""

    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLease:
    """Write the object, and tell `written` or `failed`.

    Args:
        version: that it must have; empty: it must not exist.
        holder: the identity to write; empty: to release it.
        transitions: to write.
        acquired: to write; empty: now.
    """

    version: str
    holder: str
    transitions: int
    acquired: str = ""


LeaseStep = LookAtLease | WaitForLease | WriteLease


class Candidate:
    """A process that wants to hold a Lease, or holds it.

    All times are seconds of its own monotonic clock.

    Args:
        identity: that no other process ever has.
        terms: the times.
    """

    def __init__(self, identity: str, terms: LeaseTerms) -> None:
        assert identity, "an empty identity holds no Lease"
        self._identity, self._terms = identity, terms
        self._seen: LeaseSeen | None = None
        self._changed_at = -math.inf  # when it was seen to have changed
        self._is_current = False  # nothing is known that would make a write fail
        self._due = -math.inf  # when to act next
        self._renewed = -math.inf  # before the last renewal was sent that the server took

    @property
    def holder(self) -> str:
        """The identity of the holder as it was last seen; empty: none."""
        return self._seen.holder if self._seen else ""

    @property
    def holds_until(self) -> float:
        """The time from which it holds the Lease no longer, unless it is renewed."""
        return self._renewed + self._terms.renew_within

    def holds(self, now: float) -> bool:
        """Return whether it holds the Lease."""
        return now < self.holds_until

    def step(self, now: float) -> LeaseStep:
        """Return the next action."""
        if now < self._due:
            return WaitForLease(self._due)
        if not self._is_current:
            return LookAtLease()
        if self._seen is None:
            return WriteLease(version="", holder=self._identity, transitions=0)
        return self._write(self._seen, self._identity)

    def looked(self, now: float, lease: LeaseSeen | None) -> None:
        """Take in the object as it was read.

        Args:
            now: after it was read: its content was written before.
            lease: None: it does not exist.
        """
        if lease is None or lease.holder != self._identity:
            self._renewed = -math.inf  # it is another's, or may become so at any moment
        if lease is None or self._seen is None or lease.record != self._seen.record:
            self._changed_at = now
        self._seen = lease
        free_at = self._free_at()
        self._is_current = now >= free_at
        self._due = now if self._is_current else min(now + self._terms.retry, free_at)

    def written(self, sent: float, lease: LeaseSeen) -> None:
        """Take in that the server took a write.

        Args:
            sent: before it was sent.
            lease: the object as it is now.
        """
        self._seen, self._changed_at, self._is_current = lease, sent, True
        self._renewed = sent if lease.holder == self._identity else -math.inf
        self._due = sent + self._terms.retry

    def failed(self, now: float, *, changed: bool) -> None:
        """Take in that a look or a write failed, or that its outcome is unknown.

        Args:
            changed: the object is not as it was: look at once.
        """
        self._is_current = False
        self._due = now if changed else now + self._terms.retry

    def release(self, lease: LeaseSeen) -> WriteLease | None:
        """Hold the Lease no longer.

        Args:
            lease: as it was read just now: a renewal may have been under way.

        Returns:
            The Lease that tells the others so; None: the Lease is another's.
        """
        self._renewed = -math.inf
        return self._write(lease, "") if lease.holder == self._identity else None

    def _free_at(self) -> float:
        seen = self._seen
        if seen is None or seen.holder in ("", self._identity):
            return -math.inf
        return self._changed_at + (seen.duration or self._terms.duration)

    def _write(self, seen: LeaseSeen, holder: str) -> WriteLease:
        if seen.holder == holder:
            return WriteLease(
                version=seen.version,
                holder=holder,
                transitions=seen.transitions,
                acquired=seen.acquired,
            )
        passes = seen.transitions + (holder != "")
        return WriteLease(version=seen.version, holder=holder, transitions=passes)
