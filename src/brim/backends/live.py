"""A cluster of real processes as a `Backend`.

Readings and requests become events of `ScheduledJobs`, and its commands are carried out.
Everything is decided in `brim.coordination.cluster.scheduled_jobs`. Its notes are on disk before
anything is done about them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import assert_never

from brim.backends.processes import Launch, Processes
from brim.coordination.cluster.metering import Charge
from brim.coordination.cluster.reconcile import Force, Leave, Resize, Start, Suspend
from brim.coordination.cluster.scheduled_jobs import (
    Answered,
    Command,
    Decide,
    Decided,
    Described,
    Drained,
    Event,
    Faulted,
    LearnCost,
    LearnRestart,
    LearnSpeed,
    Looked,
    Lose,
    Notify,
    Save,
    ScheduledJobs,
    Unanswered,
)
from brim.coordination.cluster.sightings import Seen
from brim.domain.cluster import ClusterSpec
from brim.domain.course import Change
from brim.domain.schedule import Decision, Snapshot
from brim.domain.scheduled_job import ScheduledJob
from brim.errors import EnvironmentFault
from brim.interfaces import Clock
from brim.storage.book import Book
from brim.telemetry.prometheus import Histogram

_BOUNDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)  # seconds of cycles and looks
_TIMES_KEPT = 200  # cycles and looks whose times are told
_POLL_INTERVAL = 0.2  # seconds between two looks at the processes
# Seconds between two looks, where there is news of processes: at least, and at most. In between as many as
# a look takes, so that what it finds to do has half of the time.
_SOON, _LONG = 0.02, 0.1
_REST = 3.0  # times as long as it takes to decide, nothing is decided because of news
_MAX_POLL_INTERVAL = (
    30.0  # seconds between two looks at most, where another would see what the last one saw
)
_WORDS = 500  # characters of an error that a job's story has
_log = logging.getLogger(__name__)
_MOST_QUESTIONS = 16  # to masters of one tenant at once: each may hang, and hold a thread
_ANSWER_TIMEOUT = (
    0.1  # seconds that a look waits for answers; who takes longer is heard at a later one
)


def write_down(book: Book, commands: Iterable[Command]) -> None:
    """Write down what commands say, as a whole or not at all."""
    with book.transaction():  # the disk is waited for once
        for command in commands:
            match command:
                case Save(job=job):
                    book.save(job)
                case Change():
                    book.note(command)
                case LearnSpeed():
                    book.learn(command.submission, command.measured, command.steps)
                case LearnCost(kind=kind, seconds=seconds):
                    book.learn_cost(kind, seconds)
                case LearnRestart(submission=submission, seconds=seconds):
                    book.learn_restart(submission, seconds)
                case Charge():
                    book.charge(
                        command.used,
                        command.shares,
                        counted=command.counted,
                        recent=command.recent,
                    )
                case Notify(channel=channel, notification=notification):
                    book.keep_notification(channel, notification)


def all_seen() -> float:
    """Return no seconds: processes of hosts can always be looked at."""
    return 0.0


def never_calm() -> bool:
    """Return False: processes may do anything at any time, and only a look tells."""
    return False


async def on_disk(_: Collection[str]) -> None:
    """Return at once: the content of a book is on disk."""


def _about_to_be(job: ScheduledJob) -> Seen:
    """Return the sight of a job that is being started, with processes where they were ordered."""
    allocation = job.allocation
    return Seen(
        alive=True, agents=frozenset({allocation.home, *allocation.told}), step=job.progress.step
    )


class LiveBackend:
    """The jobs of `book`, on this cluster.

    Args:
        book: is kept up to date.
        processes: of the jobs.
        spec: of the cluster.
        clock: its wall clock is the cluster's.
        settled: waits until the book's entries on these jobs, and on the last cycle, cannot be
            lost any more; nothing is done about them before.
        unseen: the seconds so far in which the cluster could not be seen; no job is charged for
            them.
        interval: seconds between two looks without news (see `stir`).
        starts: jobs that are being started at once, at most.
        calm: whether processes are as the last look saw them, and nothing of them goes by the clock.

    Attributes:
        jobs: decide everything.
        memory: the memory of the last cycle.
        cycles, looks: seconds that each of the latest took; decisions of a cycle are carried out by
            the look after it, and count there.
        cycle_seconds, look_seconds: the same of all, counted.
        looked: when the last look ended, in monotonic seconds.
    """

    def __init__(
        self,
        book: Book,
        processes: Processes,
        spec: ClusterSpec,
        *,
        clock: Clock,
        settled: Callable[[Collection[str]], Awaitable[None]] = on_disk,
        unseen: Callable[[], float] = all_seen,
        interval: float = _POLL_INTERVAL,
        starts: float = math.inf,
        calm: Callable[[], bool] = never_calm,
    ) -> None:
        self.jobs = ScheduledJobs(
            book.unfinished(), spec, book, counted=book.counted, recent=book.recent
        )
        self.memory: object = None
        self.cycles = deque[float](maxlen=_TIMES_KEPT)
        self.looks = deque[float](maxlen=_TIMES_KEPT)
        self.cycle_seconds = Histogram(_BOUNDS)
        self.look_seconds = Histogram(_BOUNDS)
        self.looked = clock.now()
        self._book = book
        self._processes = processes
        self._clock = clock
        self._settled, self._poll_interval, self._starts = settled, interval, starts
        self._unseen, self._passed_over = unseen, 0.0
        self._calm, self._saw_all = calm, False
        self._questions: dict[
            str, asyncio.Task[None]
        ] = {}  # what their masters have not answered yet
        self._places = defaultdict[str, asyncio.Semaphore](  # for questions, by tenant
            lambda: asyncio.Semaphore(_MOST_QUESTIONS)
        )
        self._starting: dict[str, asyncio.Task[None]] = {}  # nobody can tell yet what they have
        self._telling: set[asyncio.Task[None]] = set()  # masters of nodes that are lost
        self._news = True  # there is something to decide
        self._stirred = asyncio.Event()
        self._observed = 0.0
        self._woke: float | None = None
        self._rested = 0.0  # when it may be decided again because of news

    @property
    def spec(self) -> ClusterSpec:
        """The cluster as it was described last."""
        return self.jobs.spec

    @property
    def problem(self) -> str:
        """The nodes that are gone, in words; empty where none is."""
        return self.jobs.nodes.problem

    def handle(self, event: Event) -> list[Command]:
        """Take in an event, and store the consequences; the steps to take are returned."""
        now = self._clock.wall()
        commands = self.jobs.handle(event, now)
        # A look also proves that something could be written, though there may be nothing to write.
        if isinstance(event, Looked) or any(not isinstance(each, Decide) for each in commands):
            write_down(self._book, commands)
        if any(isinstance(command, Decide) for command in commands):
            self._news = True
            self.stir()
        return commands

    def stir(self) -> None:
        """Look soon: there is news of nodes or processes."""
        self._stirred.set()

    def reconfigure(self, spec: ClusterSpec) -> None:
        """Go by another description of the cluster from the next cycle on."""
        self.handle(Described(spec))

    def drain(self, *, kill: bool) -> None:
        """Suspend every job, decide nothing more, and end.

        With `kill`, the jobs end at once instead of at a step boundary.
        """
        self.handle(Drained(kill))

    def close(self) -> None:
        """Ask no more questions, and hear no answer."""
        for task in [*self._questions.values(), *self._starting.values(), *self._telling]:
            task.cancel()
        self._questions.clear()
        self._starting.clear()

    # Backend --------------------------------------------------------------------------------------

    async def wait(self, deadline: float | None) -> bool:
        """Look, and do the remaining work, until there is something to decide."""
        there_is = await self._wait(deadline)
        self._woke = self._clock.now()
        return there_is

    async def _wait(self, deadline: float | None) -> bool:
        while True:
            if not self._may_rest():
                await self.look()
            if self.jobs.draining:
                if not self.jobs.to_look_at():
                    return False
                await asyncio.sleep(min(_POLL_INTERVAL, self._poll_interval))
                continue
            remaining = self._due(deadline) - self._clock.wall()
            rest = self._rested - self._clock.now()
            if (self._news and rest <= 0.0) or remaining <= 0.0:
                self._news = False
                return True
            with contextlib.suppress(TimeoutError):
                pause = min(self._poll_interval, remaining, rest if self._news else math.inf)
                # Not by wait_for: where both come at once, that hears the news and is not cancelled.
                async with asyncio.timeout(pause):
                    await self._stirred.wait()
                if not self._news or rest > 0.0:  # what pods and nodes do, they mostly do together
                    await asyncio.sleep(max(_SOON, min(self.looks[-1], _LONG)))

    def _may_rest(self) -> bool:
        """Return whether another look would see nothing new, and find nothing to do."""
        if self._stirred.is_set() or self._clock.now() - self.looked > _MAX_POLL_INTERVAL:
            return False
        is_heard = self._saw_all and not (self._questions or self._starting)
        return is_heard and self._calm() and self.jobs.rest(self._clock.wall())

    def _due(self, deadline: float | None) -> float:
        wake = self.jobs.wake_at(self._observed)
        return wake if deadline is None else min(wake, deadline)

    async def decide_meanwhile(self, deciding: Awaitable[Decision]) -> Decision:
        """Wait for a decision that takes long; until then, give jobs their lost workers back.

        For another worker in the place of one that is lost, nothing of the next plan need be known.
        """
        decided = asyncio.ensure_future(deciding)
        try:
            while not decided.done():
                stirred = asyncio.ensure_future(self._stirred.wait())
                await asyncio.wait((decided, stirred), return_when=asyncio.FIRST_COMPLETED)
                stirred.cancel()
                if not decided.done():
                    await self.look(deciding=True)
                    pause = max(_SOON, min(self.looks[-1], _LONG))
                    await asyncio.wait((decided,), timeout=pause)
            return decided.result()
        finally:
            decided.cancel()

    async def observe(self) -> Snapshot:
        """The jobs that may run, as they are."""
        self._observed = self._clock.wall()
        return self.jobs.snapshot(self._observed, memory=self.memory)

    async def apply(self, decision: Decision) -> None:
        """Store the decided workers of each job, and begin to bring them about."""
        self.memory = decision.memory
        self.handle(Decided(decision))
        if self._woke is not None:
            self.cycles.append(self._clock.now() - self._woke)
            self.cycle_seconds.observe(self.cycles[-1])
            # Where many jobs take long to decide about, most of the time is for their steps.
            self._rested = self._clock.now() + _REST * self.cycles[-1]
        if not self._may_rest():  # else the plan is what there is
            await self.look()

    # What is read and asked -----------------------------------------------------------------------

    async def look(self, *, deciding: bool = False) -> None:
        """Look at nodes and processes, and take the next steps.

        Args:
            deciding: a decision is under way: see `Looked`.
        """
        started = self._clock.now()
        self._pass_on_faults()  # of what was not waited for
        self._stirred.clear()
        looked_at = self.jobs.to_look_at()
        nodes = self._processes.nodes(
            [node.id for node in self.spec.cluster.nodes],
            {job.id: job.starts.launches for job in looked_at},
        )
        seen: dict[str, Seen] = {}
        for job in looked_at:
            if (starting := self._starting.get(job.id)) is not None and not starting.done():
                seen[job.id] = _about_to_be(job)
                continue
            launch = self._launch(job.id)
            try:
                seen[job.id] = self._processes.look(launch)
            except (EnvironmentFault, OSError):
                pass  # nobody can tell now whether it is alive: it is looked at again
            except Exception as error:  # noqa: BLE001 whatever its files have in them
                await self._fail(launch, "look at", error)
        looked_at = [job for job in looked_at if job.running]
        self._saw_all = len(seen) == len(looked_at)
        room = self._starts - sum(not task.done() for task in self._starting.values())
        unseen = self._unseen()
        set_by = self._clock.set_by()
        steps = self.handle(Looked(nodes, seen, room, unseen - self._passed_over, deciding, set_by))
        self._passed_over = unseen
        # Starts wait for their own records, each by itself: they may be many.
        at_once = (Force, Leave, Resize, Suspend)
        if jobs := {step.job for step in steps if isinstance(step, at_once)}:
            await self._settled(jobs)
        if self._unseen() > unseen:
            steps = self._without_force(steps)
        await self._carry_out(steps)
        self._pass_on_faults()
        self.looked = self._clock.now()
        self.looks.append(self.looked - started)
        self.look_seconds.observe(self.looks[-1])

    def _without_force(self, steps: Iterable[Command]) -> list[Command]:
        """Take nothing by force that may have been given unobserved."""
        for step in steps:
            if isinstance(step, Force):
                self.handle(Unanswered(step, "its earlier answer was not observed"))
        return [step for step in steps if not isinstance(step, Force)]

    async def _carry_out(self, commands: Iterable[Command]) -> None:
        """Take steps: first those that need no answer, before anything else can happen.

        A process that is asked or started holds up no other. One that does not answer soon is heard
        at a later look.
        """
        inquiries: list[asyncio.Task[None]] = []
        questions: list[Resize | Suspend] = []
        for command in commands:
            match command:
                case Start():
                    self._forget_question(command.job)
                    task = asyncio.create_task(self._start(command, self._launch(command.job)))
                    self._starting[command.job] = task
                    inquiries.append(task)
                case Force(job=job, workers=workers):
                    await self._forget_start(job)
                    with _kept_to(job):
                        await self._processes.force(self._launch(job), workers)
                case Leave(job=job, node=node):
                    with _kept_to(job):
                        await self._processes.leave(self._launch(job), node)
                case Lose(job=job, node=node) if job in self.jobs.jobs:
                    telling = asyncio.create_task(self._tell(self._launch(job), node))
                    self._telling.add(telling)
                    telling.add_done_callback(self._telling.discard)
                case Resize() | Suspend():
                    questions.append(command)
                case Save() | Change() | Charge() | Notify():
                    pass  # is written down
                case LearnSpeed() | LearnCost() | LearnRestart():
                    pass  # is written down
                case Decide() | Lose():
                    pass  # is done, or is about no job any more
                case _:
                    assert_never(command)
        for question in questions:  # behind all starts
            self._forget_question(question.job)
            task = asyncio.create_task(self._ask(question))
            self._questions[question.job] = task
            inquiries.append(task)
        if inquiries:  # only what was asked just now is waited for, not earlier questions
            await asyncio.wait(inquiries, timeout=_ANSWER_TIMEOUT)

    async def _tell(self, launch: Launch, node: str) -> None:
        """Tell a master of a node that is lost; one that does not hear it sees it itself, later."""
        with _kept_to(launch.job):
            await self._processes.lose(launch, node)

    def _pass_on_faults(self) -> None:
        """Raises the errors of questions that could not be written down."""
        for tasks in (self._questions, self._starting):
            for job, task in list(tasks.items()):
                if task.done():
                    del tasks[job]
                    task.result()

    def _launch(self, job: str) -> Launch:
        record = self.jobs.jobs[job]
        empty = {node.id for node in self.spec.cluster.nodes if not node.devices}
        return Launch(
            job=record.id,
            spec=record.submission.spec,
            user=record.user,
            home=record.allocation.home,
            number=record.starts.launches,
            step=record.progress.step,
            computes=record.allocation.home not in empty,
            anywhere=record.submission.anywhere,
            processes=record.submission.processes,
        )

    def _forget_question(self, job: str) -> None:
        """Hear no answer of processes that have ended."""
        task = self._questions.pop(job, None)
        if task is not None:
            task.cancel()

    async def _forget_start(self, job: str) -> None:
        """Start nothing more of a job that is to have nothing."""
        task = self._starting.pop(job, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _start(self, action: Start, launch: Launch) -> None:
        try:
            await self._settled([action.job])
            await self._processes.start(launch, action.workers)
        except EnvironmentFault as fault:
            self.handle(Unanswered(action, str(fault)))
        except OSError:
            return  # it is looked at, and has no processes
        except Exception as error:  # noqa: BLE001 whatever its spec and its files have in them
            await self._fail(launch, "start", error)
        else:
            self.handle(Answered(action))
        finally:
            self.stir()

    async def _ask(self, action: Resize | Suspend) -> None:
        launch = self._launch(action.job)
        places = self._places[self.jobs.jobs[action.job].submission.tenant]
        starting = self._starting.get(action.job)
        if starting is not None and not starting.done():
            await asyncio.wait([starting])  # what it is asked now counts, whatever it began with
            job = self.jobs.jobs.get(action.job)
            if job is None or not job.running or job.starts.launches != launch.number:
                self.handle(Unanswered(action, "it was not started"))
                return
        try:
            async with places:
                if isinstance(action, Resize):
                    await self._processes.resize(launch, action.workers)
                else:
                    await self._processes.suspend(launch)
        except (EnvironmentFault, OSError) as fault:
            self.handle(Unanswered(action, str(fault)))
        except Exception as error:  # noqa: BLE001 whatever its master answers
            self.handle(Unanswered(action, _words(error)))
        else:
            self.handle(Answered(action))

    async def _fail(self, launch: Launch, doing: str, error: Exception) -> None:
        """Fail a job after an unexpected error; the others go on."""
        reason = f"the scheduler cannot {doing} it: {_words(error)}"
        _log.error("%s: %s", launch.job, reason, exc_info=error)
        with _kept_to(launch.job):
            await self._processes.force(launch, {})
        self.handle(Faulted(launch.job, reason))


@contextlib.contextmanager
def _kept_to(job: str) -> Iterator[None]:
    """Ask the processes of one job something, of which no answer, and no error, concerns others."""
    try:
        yield
    except (EnvironmentFault, OSError):
        pass
    except Exception:  # noqa: BLE001 whatever they answer
        _log.exception("%s: its processes cannot be asked", job)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_WORDS]
