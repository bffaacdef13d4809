"""The heir: a worker that stores messages and state where its agent was killed.

First all that it had said, then the state of the job.

One worker of a run is its heir: the first of a round whose members are all of one agent. All others
die with their agent, and so does the first where no agent follows.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from brim.errors import EnvironmentFault
from brim.host.process import die_with_parent, outlive_parent
from brim.storage.heir import UNHEARD, be_heir, succession
from brim.storage.journal import Journal
from brim.wire.messages import AgentMessage, Codec, Unheard


class Inheritance:
    """The role of heir, and whether this worker has it.

    Args:
        run_dir: of the run.
    """

    def __init__(self, run_dir: str) -> None:
        self._run_dir = Path(run_dir)
        self._agent = os.getppid()
        self._journal: Journal | None = None  # open until this process ends
        self.is_mine = False

    def settle(self, *, on_me: bool) -> None:
        """Be the heir from here on, or not; where the disk refuses the note, there is no heir."""
        if on_me and succession() and not self.is_mine:
            with contextlib.suppress(OSError):
                be_heir(
                    self._run_dir
                )  # first: a worker that is not known as the heir must not outlive the agent
                outlive_parent()
                self.is_mine = True
        elif self.is_mine and not on_me:
            die_with_parent(self._agent)
            self.is_mine = False

    def leave_words(self, words: Iterable[AgentMessage]) -> None:
        """Add the last messages, which may not have been heard, to the agent's leavings.

        From here on, and until this process has ended, no agent can write there: so none goes on
        before that.

        Raises:
            EnvironmentFault: the disk does not take it; or the agent lives after all, or another
                has taken its place.
        """
        codec: Codec[Unheard] = Codec(Unheard)
        self._journal = Journal(self._run_dir / UNHEARD)
        if (
            not self._journal.written
        ):  # the agent could not write, so what comes before these words is not there
            raise EnvironmentFault(f"{self._run_dir / UNHEARD} is empty")
        try:
            for word in words:
                self._journal.append(codec.encode(Unheard(session="", number=0, message=word)))
        except OSError as error:
            raise EnvironmentFault(f"cannot write {self._run_dir / UNHEARD}: {error}") from error
