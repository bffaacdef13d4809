"""Faults of the operator's own, each at one job: all others go on."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from brim.errors import EnvironmentFault
from brim.kubernetes.objects.status import OPERATOR_FAULT, Stall

_log = logging.getLogger(__name__)


class JobFault(EnvironmentFault):
    """An error of the operator's own at one job."""


class JobFaults:
    """The jobs at which something fails unexpectedly.

    Args:
        tell: called with a job of which there is news in `stall`.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._stalls: dict[str, dict[str, Stall]] = {}  # by job, and by what was done

    def stall(self, job: str) -> Stall | None:
        """Return the failure at a job; None where nothing fails."""
        return next(iter(self._stalls.get(job, {}).values()), None)

    @property
    def jobs(self) -> list[str]:
        """The jobs at which something fails."""
        return [job for job, stalls in self._stalls.items() if stalls]

    def forget(self, job: str) -> None:
        """Know of no faults of a job: it is another one now, or gone."""
        self._stalls.pop(job, None)

    @contextlib.contextmanager
    def at(self, job: str, doing: str) -> Iterator[None]:
        """Do something about one job.

        Args:
            doing: the deed, such as `look at it`.

        Raises:
            JobFault: in place of any unexpected exception.
            EnvironmentFault, OSError: as they come.
        """
        try:
            yield
        except (EnvironmentFault, OSError):
            raise
        except Exception as error:
            words = f"the operator cannot {doing}: {type(error).__name__}: {error}"
            self._note(job, doing, Stall(OPERATOR_FAULT, words))
            raise JobFault(f"{job}: {words}") from error
        stalls = self._stalls.get(job, {})
        if stalls.pop(doing, None) is not None:
            self._tell(job)

    def _note(self, job: str, doing: str, stall: Stall) -> None:
        stalls = self._stalls.setdefault(job, {})
        if stalls.get(doing) != stall:  # it is tried again and again, and logged once
            stalls[doing] = stall
            _log.exception("%s: %s", job, stall.message)
            self._tell(job)
