"""A warm process that forks whole runs: importing torch costs seconds, a fork with it
milliseconds.

Its forks are a run's real processes: the agent, which forks master and template as the agent of
a node does, and workers by the template; or one process alone, as `python loop.py` is. Requests
come as lines of JSON on standard input, answers go to standard output; remaining processes end
with it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import torch
from pace import keep_pace, replay_always

import brim.agent.__main__
import brim.master.__main__
import brim.worker.process
import brim.worker.template
from brim.agent.births import Forked, fork, perform
from brim.host.process import be_called, die_with_parent
from brim.train.job import Job
from brim.train.membership import Loner
from brim.wire.messages import Completed
from brim.worker import warm

TIME_LIMIT = 180.0  # seconds of one run, beside whatever else this machine does
THREADS = torch.get_num_threads()  # as an interpreter that is started again has them


class Nursery:
    """Forks runs as they are asked for, and tells how each ended."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._runs: dict[
            Forked, tuple[int, float, int]
        ] = {}  # its number, when it is killed, its standard input
        self._watch = selectors.DefaultSelector()
        self._watch.register(0, selectors.EVENT_READ)
        self._unread = b""

    def serve(self) -> None:
        """Until the last request."""
        while True:
            for key, _ in self._watch.select(timeout=1.0):
                if isinstance(key.fileobj, Forked):
                    self._bury(key.fileobj)
                elif not self._read():
                    self._end_all()
                    return
            for run, (_, limit, _) in self._runs.items():
                if time.monotonic() > limit:
                    _kill_all_of(run)

    def _read(self) -> bool:
        data = os.read(0, 1 << 20)
        *requests, self._unread = (self._unread + data).split(b"\n")
        for request in requests:
            self._begin(json.loads(request))
        return bool(data)

    def _begin(self, request: dict[str, Any]) -> None:
        stdin, own_end = os.pipe()
        output = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        pid = os.fork()
        if not pid:
            work, argv = (
                (_alone, request["argv"]) if "end" in request else (_agent, request["argv"])
            )
            perform(lambda: self._become(work, request), argv, stdin=stdin, output=output, keep=[])
        os.close(stdin)
        os.close(output)
        run = Forked(pid)
        self._runs[run] = (request["number"], time.monotonic() + TIME_LIMIT, own_end)
        self._watch.register(run, selectors.EVENT_READ)

    def _become(self, work: Any, request: dict[str, Any]) -> None:
        os.setsid()
        die_with_parent(self._pid)
        os.chdir(request["directory"])
        os.environ |= request["environment"]
        numpy.random.seed()
        work(request)

    def _bury(self, run: Forked) -> None:
        self._watch.unregister(run)
        number, limit, stdin = self._runs.pop(run)
        os.close(stdin)
        is_late = time.monotonic() > limit
        answer = {"number": number, "status": run.wait(), "pid": run.pid, "is_late": is_late}
        print(json.dumps(answer), flush=True)  # noqa: T201

    def _end_all(self) -> None:
        for run in self._runs:
            _kill_all_of(run)
            run.wait()


def _kill_all_of(run: Forked) -> None:
    """A run has a session of its own, so all of its processes are one group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)


def _agent(request: dict[str, Any]) -> None:
    brim.agent.__main__.main(fork)


def _alone(request: dict[str, Any]) -> None:
    """`python loop.py`; behind it, its job's message on its end."""
    torch.set_num_threads(request["threads"] or THREADS)
    jobs: list[Job] = []
    ends: list[Completed] = []
    usual_init, usual_tell = Job.__init__, Loner.tell

    def init(job: Job, *arguments: Any, **options: Any) -> None:
        jobs.append(job)
        usual_init(job, *arguments, **options)

    def tell(loner: Loner, message: Any) -> None:
        if isinstance(message, Completed):
            ends.append(message)
        usual_tell(loner, message)

    Job.__init__, Loner.tell = init, tell  # type: ignore[method-assign, assignment]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    try:
        _as_python_does(sys.argv[0])
    finally:
        found: dict[str, Any] = {"steps": max((job.committed for job in jobs), default=0)}
        if ends:
            found |= {"weights_sha256": ends[-1].weights_sha256, "metrics": ends[-1].metrics}
        Path(request["end"]).write_text(json.dumps(found))


def _as_python_does(script: str) -> None:
    """Run a script, and its exit handlers; raises SystemExit where it fails."""
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1) from error
    finally:
        atexit._run_exitfuncs()


def main() -> None:
    be_called("zoo-nursery")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_pace()
    replay_always()
    warm.import_torch()
    for name in sys.argv[1:]:
        importlib.import_module(name)
    if not warm.forking_is_safe():
        raise SystemExit("this process cannot be forked")
    gc.collect()
    gc.freeze()
    Nursery().serve()


if __name__ == "__main__":
    main()
