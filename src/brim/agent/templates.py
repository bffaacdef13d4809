"""Templates as their agents start them: the processes that workers are forked from.

Little is imported here, so that one that is started early has its torch soon.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from brim.agent.births import Process, StartProcess, start_anew
from brim.errors import EnvironmentFault
from brim.host.stacks import Stacks
from brim.storage.files import open_log, temporary_folder

TO_PART = 1.0  # seconds for a template that serves to end by itself


@dataclass(frozen=True, slots=True)
class Template:
    """The process that workers are forked from, its request socket, and its stack."""

    process: Process
    requests: socket.socket
    stacks: Stacks

    def begin(self, host: str) -> None:
        """Have one that was started early read the job, which is in its place now.

        It may have ended: `Workers` notices that, as of any template.

        Args:
            host: address of this host.
        """
        with contextlib.suppress(OSError):
            self.requests.send(host.encode())

    def drop(self) -> None:
        """End one that was started early, for no job came."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # uninterruptible: it ends when it can
            self.process.wait(TO_PART)
        self.requests.close()
        self.stacks.close()


def start_template(
    run_dir: Path, host: str | None = None, start: StartProcess = start_anew
) -> Template:
    """Start the template of a run, whose directory has the file of the job.

    Args:
        host: address of this host; None: neither it nor the file is there yet, and the template
            imports torch until it is told to begin.
        start: how; this process may fork no more once it runs an event loop.
    """
    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    own_end, template_end = socket.socketpair()
    stacks, null = Stacks(), os.open(os.devnull, os.O_RDONLY)
    with open_log(run_dir / "logs" / "template.log") as log, template_end:
        keep = [template_end.fileno(), stacks.file]
        arguments = ["--control", str(keep[0]), "--stacks", str(keep[1])]
        arguments += ["--run-dir", str(run_dir), *(["--host", host] if host is not None else [])]
        process = start(
            "brim.worker.template", arguments, stdin=null, output=log.fileno(), keep=keep
        )
    os.close(null)
    return Template(process, own_end, stacks)


class Workplace(NamedTuple):
    """The directory of an agent that joins a run, and its template, which was started early.

    Attributes:
        template: None where the agent takes no workers.
        removal: of the directory.
    """

    directory: Path
    template: Template | None
    removal: contextlib.ExitStack

    def close(self) -> None:
        """Have neither, where the agent has come to nothing."""
        if self.template is not None:
            self.template.drop()
        self.removal.close()


def make_workplace(*, takes_workers: bool) -> Workplace:
    """Make the place of an agent that is about to call its master.

    Raises:
        EnvironmentFault: there is no room for its directory.
    """
    try:
        removal = contextlib.ExitStack()
        directory = removal.enter_context(temporary_folder("brim-agent-"))
    except OSError as error:
        raise EnvironmentFault(
            f"an agent needs a directory for temporary files: {error}; TMPDIR names one"
        ) from error
    template = start_template(directory) if takes_workers else None
    return Workplace(directory, template, removal)
