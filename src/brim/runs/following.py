"""Follows a run to its end: starts it, shows it, and passes on interrupts."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from brim.backends import local
from brim.domain.inference import Inference
from brim.domain.job import JobSpec
from brim.domain.kept_run import place_of
from brim.domain.quantities import counted
from brim.errors import EnvironmentFault, SpecError
from brim.host.clock import monotonic, sleep
from brim.runs.followers import Followers
from brim.runs.invite import Invitation
from brim.runs.outcome import error_of, state_of, write_report
from brim.runs.prints import Prints
from brim.runs.starting import Ready, taken_back_if_stopped
from brim.runs.views import View, choose_view
from brim.storage.file_stores import open_place
from brim.storage.files import partial_of
from brim.storage.journal import set_aside_if_damaged
from brim.storage.kept_runs import Keeping
from brim.telemetry.history import RunHistory, RunReader, read_history

# Seconds between two looks: fast enough to look live, slow enough to cost nothing beside training.
INTERVAL = 0.1
_TO_SAY_SO = 8.0  # seconds of a start until it is spoken of; again after twice the time
_TO_STOP_UNHEARD = 30.0  # seconds that a run which has said nothing has to end when it is asked to
_LAST_LINES = 200  # of rank 0, among which its failure is looked for


class _Processes(Protocol):
    """The processes of a run, as `brim.backends.local.start` gives them."""

    def poll(self) -> int | None: ...

    def interrupt(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A run that was followed to its end.

    Args:
        history: what its records say.
        code: that its processes ended with.
        report: its page; None where there is none.
        interrupts: how often somebody asked for its end.
        has_said_why: what rank 0 printed last, which was shown, says why it failed.
    """

    history: RunHistory
    code: int
    report: Path | None
    interrupts: int
    has_said_why: bool = False


def _ends_with(lines: Iterable[str], words: str) -> bool:
    """Return whether lines have these words, as the last that were shown."""
    return words.rstrip() in "\n".join(lines)


def follow(
    ready: Ready, *, prints: bool = False, signals: bool = False, report: bool = True
) -> Followed:
    """Start a run and show it until it has ended.

    The first interrupt stops the run at its next step with a checkpoint, the second kills it.

    Args:
        prints: show what rank 0 prints.
        signals: SIGINT and SIGTERM interrupt; else KeyboardInterrupt does, as it arrives in a
            program or in a notebook.
        report: write its report when it has ended; of a run that is kept elsewhere it is always
            written, for those who look there.

    Raises:
        SpecError, EnvironmentFault: it cannot be started.
        KeyboardInterrupt: it was interrupted before it had begun: see `taken_back_if_stopped`.
    """
    reader = RunReader(ready.run_dir, keep_steps=False)
    reader.poll()  # an earlier life of the run is known, but not shown again
    invitation = Invitation(ready.run_dir) if ready.listen else None
    printed = Prints(ready.run_dir, reader.history) if prints else None
    damage = set_aside_if_damaged(ready.run_dir / "journal")
    followers = Followers(ready.run_dir, ready.loggers, ready.spec.directory)
    with contextlib.ExitStack() as hearing:
        interrupts = _Interrupts()
        if signals:
            hearing.enter_context(_interrupted_by_signals(interrupts))
        run = _start(ready)
        hearing = hearing.pop_all()
    try:
        with hearing, contextlib.closing(choose_view()) as view:
            watch = _Watch(run, reader, view, invitation, printed, followers)
            if damage:
                view.note(damage)
            view.note(f"starting {_workers(ready.spec)} for {ready.run_dir}")
            if signals:
                watch.interrupt_hint = "Ctrl-C again"
            interrupts.pass_on_to(watch)
            code = watch.to_the_end()
            hearing.close()
            if reader.history.started:
                for note in followers.finish():
                    view.note(note)
            history = read_history(ready.run_dir)
            page = _leave_behind(ready, history, view, report=report or bool(ready.spec.runs))
    except BaseException:
        run.kill()  # nobody would watch it any more, and nobody asked for it to go on alone
        followers.kill()
        raise
    if watch.interrupts and not watch.is_heard:
        raise KeyboardInterrupt
    failed = history.failed
    return Followed(
        history=history,
        code=code,
        report=page,
        interrupts=watch.interrupts,
        has_said_why=failed is not None and _ends_with(watch.last_lines, failed.words),
    )


def follow_to_a_good_end(ready: Ready) -> None:
    """Start a run from Python, show it, and return once it is done or somebody has suspended it.

    Raises:
        SpecError, UserCodeError, EnvironmentFault, InternalError: it could not be started, or
            failed.
        KeyboardInterrupt: it was interrupted, after it has ended; or before it had begun, and
            nothing is left of a new one.
    """
    with taken_back_if_stopped(ready):
        ended = follow(ready, prints=bool(ready.spec.command))
    if ended.interrupts:
        resuming_hint = f"brim.Run({str(ready.run_dir)!r}).resume() goes on"
        raise KeyboardInterrupt(f"{ready.run_dir} was stopped; {resuming_hint}")
    if error := error_of(ended.history, ready.run_dir):
        raise error


def _start(ready: Ready) -> _Processes:
    try:
        return local.start(ready.spec, ready.run_dir, resume=ready.resumes, listen=ready.listen)
    except (SpecError, EnvironmentFault):
        if ready.fresh:
            ready.fresh.withdraw()
        raise


class _Watch:
    """Shows a run while it lasts, and hears requests to end it.

    Args:
        invitation: tells how to join, for a run that listens for agents of other hosts.
        prints: what rank 0 prints, where that is to be shown.
        followers: the processes of its loggers, which begin once the run does.
    """

    def __init__(
        self,
        run: _Processes,
        reader: RunReader,
        view: View,
        invitation: Invitation | None,
        prints: Prints | None,
        followers: Followers,
    ) -> None:
        self._run = run
        self._reader = reader
        self._view = view
        self._invitation = invitation
        self._prints = prints
        self._followers = followers
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.interrupt_hint = "interrupt again"
        self.interrupts = 0
        self._stopping_at: float | None = None  # the first of these
        self._started_at: float | None = monotonic()  # None: its records tell how far it is
        self._to_say_so = _TO_SAY_SO

    @property
    def is_heard(self) -> bool:
        """Return whether the run has written anything since it was started."""
        return self._started_at is None

    def to_the_end(self) -> int:
        """Show it until all its processes have ended; their exit code."""
        while True:
            try:
                # Asked first: what it wrote at its very end is shown as well.
                code = self._run.poll()
                self._show()
                self._give_up()
                if code is not None:
                    self._say(self._prints.rest(self._reader.history) if self._prints else ())
                    return code
                if self._reader.history.started:
                    self._followers.tend(self._view)
                sleep(INTERVAL)
            except KeyboardInterrupt:
                self.interrupt()

    def _show(self) -> None:
        fresh = self._reader.poll()
        self._tell_of_slow_start(is_heard=bool(fresh))
        self._view.show(fresh, self._reader.history)
        self._say(self._prints.fresh(self._reader.history) if self._prints else ())
        if self._invitation and (text := self._invitation.text()):
            self._view.note(text)

    def _tell_of_slow_start(self, *, is_heard: bool) -> None:
        """Say that the run's own processes are starting, until they report their own activity."""
        if is_heard:
            self._started_at = None
        if self._started_at is None:
            return
        duration = monotonic() - self._started_at
        if duration > self._to_say_so:
            self._to_say_so = 2 * duration
            self._view.note(f"the run is still starting ({duration:.0f} s so far)")

    def _give_up(self) -> None:
        """Kill a run that was asked to stop, and whose processes have said nothing yet."""
        if self._stopping_at is None or self.is_heard:
            return
        if monotonic() - self._stopping_at > _TO_STOP_UNHEARD:
            self._stopping_at = None
            self._view.note("killing the run, which has not begun and does not end")
            self._run.kill()

    def _say(self, lines: Iterator[str] | Sequence[str]) -> None:
        for line in lines:
            self._view.say(line)
            self.last_lines.append(line)

    def interrupt(self) -> None:
        """Ask the run to stop; the second time, end it."""
        self.interrupts += 1
        if self.interrupts == 1:
            self._stopping_at = monotonic()
            self._view.note(
                f"stopping at the next step with a checkpoint; {self.interrupt_hint} to kill"
            )
            self._run.interrupt()
        else:
            self._view.note("killing the run")
            self._run.kill()


class _Interrupts:
    """Interrupts of a run: the first waits until its processes are there, the next does not."""

    def __init__(self) -> None:
        self._watch: _Watch | None = None
        self._early = 0

    def hear(self) -> None:
        """Pass one on; raises KeyboardInterrupt where somebody insists."""
        if self._watch is not None:
            self._watch.interrupt()
            return
        self._early += 1
        if self._early > 1:
            raise KeyboardInterrupt

    def pass_on_to(self, watch: _Watch) -> None:
        """Have them go there from now on."""
        self._watch = watch
        if self._early:
            watch.interrupt()


@contextlib.contextmanager
def _interrupted_by_signals(interrupts: _Interrupts) -> Iterator[None]:
    previous_handlers = {
        number: signal.signal(number, lambda *_: interrupts.hear())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def _leave_behind(ready: Ready, history: RunHistory, view: View, *, report: bool) -> Path | None:
    """Tidy up after a run, and write its report where it is wanted; the path of that."""
    inference = ready.spec.inference
    if inference is not None:
        _tidy(ready.run_dir, inference, done=state_of(history, alive=False) == "done")
    if history.failed is not None and history.failed.who == "spec":
        if ready.fresh and not history.steps:
            ready.fresh.withdraw()
        return None
    if inference is not None or history.started is None or not report:
        return None
    try:
        return write_report(history, ready.run_dir)
    except EnvironmentFault as fault:
        view.note(str(fault))
        return None
    finally:
        if ready.spec.runs:
            _keep_all(ready, view)


def _keep_all(ready: Ready, view: View) -> None:
    """Keep the command's last files where its runs are kept, too."""
    place = open_place(place_of(ready.spec.runs, ready.run_dir.name), field="--runs")
    try:
        Keeping(ready.run_dir, place).bring_up_to_date()
        view.note(f"kept at {place.location('')}")
    except EnvironmentFault as fault:
        view.note(f"not all of the run is at {place.location('')}: {fault}")


def _tidy(run_dir: Path, inference: Inference, *, done: bool) -> None:
    """Remove the temporary files of an inference job.

    That is an output that its writer was killed over, and parts that are used up.
    """
    if inference.output:
        with contextlib.suppress(OSError):
            partial_of(Path(inference.output), run_dir.name).unlink()
    if done:
        shutil.rmtree(run_dir / "parts", ignore_errors=True)


def _workers(spec: JobSpec) -> str:
    workers = spec.workers.words
    return f"{workers} and {counted(spec.servers, 'server')}" if spec.servers else workers
