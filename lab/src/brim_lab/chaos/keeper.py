"""Keeps a scheduler up as its administrator would.

It calls `brim up` some time after the scheduler has died or gone down.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from brim.interfaces import Clock
from brim.storage.contact import SCHEDULER_LOCK
from brim.storage.files import is_locked
from brim_lab.driver import MARK, Driver

_LOG = "up.log"


class Keeper:
    """The keeper of the scheduler of one state directory.

    Args:
        cluster: its cluster file.
        driver: of its verbs.

    Attributes:
        lives: how often a scheduler came up.
        absences: when there was none, wall clock.
        failures: what `brim up` could not do although nobody was in its way.
    """

    def __init__(self, state: Path, cluster: Path, driver: Driver, clock: Clock) -> None:
        self._state = state
        self._cluster = cluster
        self._driver = driver
        self._clock = clock
        self._up: subprocess.Popen[str] | None = None
        self._pause = 0.0
        self._absent_since: float | None = None
        self._disturbed = False
        self.lives = 0
        self.absences: list[tuple[float, float]] = []
        self.failures: list[str] = []

    def is_up(self) -> bool:
        if self._up is not None:
            self._up.wait()
        return is_locked(self._state / SCHEDULER_LOCK)

    def expect_death(self, pause: float) -> None:
        """The scheduler is about to be killed; it is brought up again after so many seconds."""
        self._pause, self._disturbed = pause, True

    def poll(self, *, told_to_go: bool) -> None:
        """Bring it up where it is time to.

        Args:
            told_to_go: somebody asks the scheduler to go down: one that does so at once did come
                up.
        """
        now = self._clock.now()
        self._disturbed |= told_to_go
        if self._up is not None:
            self._take_end(self._up)
        if self._up is not None:
            return
        if is_locked(self._state / SCHEDULER_LOCK):
            self._absent_since = None
            return
        if self._absent_since is None:
            self._absent_since = now
            self.absences.append((self._clock.wall(), self._clock.wall()))
        if now - self._absent_since >= self._pause or not self.lives:
            self._bring_up()

    def _bring_up(self) -> None:
        self._disturbed = False
        words = [] if self.lives else ["--cluster", str(self._cluster)]
        words += ["--env", MARK]
        with (self._cluster.parent / _LOG).open("ab") as log:
            self._up = self._driver.start(
                "up", *words, "--state", str(self._state), stdout=log, stderr=log
            )

    def _take_end(self, up: subprocess.Popen[str]) -> None:
        if up.poll() is None:
            return
        self._up = None
        if up.returncode == 0:
            self.lives += 1
        elif up.returncode > 0 and not self._disturbed:
            words = (self._cluster.parent / _LOG).read_text()[-1000:]
            self.failures.append(f"brim up failed: {words}")
        if self.absences:
            self.absences[-1] = self.absences[-1][0], self._clock.wall()
