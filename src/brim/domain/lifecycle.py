"""The life of a job under a scheduler, as one table of events and states. Pure.

```
submitted ──▶ admitted ──▶ running ──▶ done, failed
    │            │          ▲   │
    ▼            │          │   ▼
 refused         └─ held ─ suspended          and from each of these: cancelled
```

A job is `suspended` where it ran and has no processes now: a plan took its workers, or they died,
or its owner holds it. It runs again by the same event by which it ran first. The wish of its owner
(`Wish`) is beside the phase: a job that is to be suspended or cancelled is still running until its
processes have ended.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


class Phase(enum.StrEnum):
    SUBMITTED = "submitted"  # nobody has judged it yet
    ADMITTED = "admitted"  # it may run, and waits for its first workers
    RUNNING = "running"  # it has processes
    SUSPENDED = "suspended"  # it had processes and will have some again
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"  # the policy does not run it


class Wish(enum.StrEnum):
    """The owner's request for a job."""

    RUN = "run"
    HOLD = "hold"  # no workers until it is released
    CANCEL = "cancel"


class Happening(enum.StrEnum):
    ADMIT = "admit"  # the policy lets it run
    REFUSE = "refuse"  # the policy does not
    START = "start"  # its processes are about to be started
    FINISH = "finish"  # they have ended: all steps are done
    FAIL = "fail"  # they have ended: it cannot go on
    STOP = "stop"  # they have ended otherwise: it goes on from its last checkpoint
    HOLD = "hold"
    RELEASE = "release"
    CANCEL = "cancel"


ENDED = frozenset({Phase.DONE, Phase.FAILED, Phase.CANCELLED, Phase.REFUSED})

_NEXT: dict[tuple[Phase, Happening], Phase] = {
    (Phase.SUBMITTED, Happening.ADMIT): Phase.ADMITTED,
    (Phase.SUBMITTED, Happening.REFUSE): Phase.REFUSED,
    (Phase.SUBMITTED, Happening.START): Phase.RUNNING,  # to be measured before it is judged
    (Phase.ADMITTED, Happening.ADMIT): Phase.ADMITTED,
    (Phase.ADMITTED, Happening.REFUSE): Phase.REFUSED,
    (Phase.ADMITTED, Happening.START): Phase.RUNNING,
    (Phase.RUNNING, Happening.ADMIT): Phase.RUNNING,
    (Phase.RUNNING, Happening.FINISH): Phase.DONE,
    (Phase.RUNNING, Happening.FAIL): Phase.FAILED,
    (Phase.RUNNING, Happening.STOP): Phase.SUSPENDED,
    (Phase.SUSPENDED, Happening.ADMIT): Phase.SUSPENDED,
    (Phase.SUSPENDED, Happening.REFUSE): Phase.REFUSED,
    (Phase.SUSPENDED, Happening.START): Phase.RUNNING,
}
_WISHES = {Happening.HOLD: Wish.HOLD, Happening.RELEASE: Wish.RUN, Happening.CANCEL: Wish.CANCEL}


@dataclass(frozen=True, slots=True)
class Life:
    """The phase of a job, and its owner's wish."""

    phase: Phase = Phase.SUBMITTED
    wish: Wish = Wish.RUN

    @property
    def ended(self) -> bool:
        return self.phase in ENDED

    @property
    def may_run(self) -> bool:
        """True if it may have workers."""
        return not self.ended and self.wish is Wish.RUN


def next_life(life: Life, happening: Happening) -> Life | None:
    """The job's life after something happened to it; None where that cannot happen to it.

    >>> next_life(Life(Phase.RUNNING, Wish.CANCEL), Happening.STOP)
    Life(phase=<Phase.CANCELLED: 'cancelled'>, wish=<Wish.CANCEL: 'cancel'>)
    >>> next_life(Life(Phase.DONE), Happening.START) is None
    True
    """
    if life.ended:
        return None
    if happening in _WISHES:
        return _wished(life, _WISHES[happening])
    phase = _NEXT.get((life.phase, happening))
    if phase is None or (happening is Happening.START and life.wish is not Wish.RUN):
        return None
    if phase is Phase.SUSPENDED and life.wish is Wish.CANCEL:
        phase = Phase.CANCELLED
    return replace(life, phase=phase)


def _wished(life: Life, wish: Wish) -> Life | None:
    """A job to be cancelled stays so; without processes there is nothing to wait for."""
    if life.wish is Wish.CANCEL or life.wish is wish:
        return None
    if wish is Wish.CANCEL and life.phase is not Phase.RUNNING:
        return Life(Phase.CANCELLED, wish)
    return replace(life, wish=wish)
