"""The template: one process per agent that has imported torch and the user's file.

It forks workers.

Importing torch is most of a worker's start. The template pays it once, reads the data and builds
the model once, and then forks a warm worker in milliseconds. It starts no thread and touches no
GPU, so that forking it is safe; where it is not, the same process starts new ones (`spawn`).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from brim.domain.job import JobSpec
from brim.errors import BrimError, SpecError
from brim.host.inherited import Inherited, inherited_by_forks
from brim.host.process import (
    WORKER,
    be_called,
    die_with_adopter,
    die_with_parent,
    go_first_when_memory_is_short,
    print_by_line,
    readable,
    run_module,
)
from brim.host.shortage import told_in_words, words_of_shortage
from brim.host.stacks import show_no_more, show_when_asked
from brim.storage.job_file import read_job, with_code_in_place
from brim.train.context import (
    WorkerContext,
    environment_for,
    import_own_code,
    shared_environment,
)
from brim.user_code.python_program import program_of
from brim.wire.frames import FrameBuffer, frame
from brim.wire.messages import (
    Codec,
    TemplateMessage,
    TemplateReady,
    WorkerForked,
    WorkerMessage,
    failure_of,
)
from brim.wire.proofs import workers_secret
from brim.wire.run_identity import WORKER as AS_WORKER
from brim.wire.run_identity import is_encrypted, run_identity

_LONGEST_ADDRESS = 256  # bytes
_MOST_DESCRIPTORS = 128  # that come with a request
_codec: Codec[TemplateMessage] = Codec(TemplateMessage)


class _Birth(NamedTuple):
    """A worker that is to be, and the descriptors that come with the request."""

    worker: str
    place: int
    link: int
    memory: int
    tables: int
    notice: int
    log: int
    stacks: int
    board: tuple[int, ...]


class _UnderWay(NamedTuple):
    """A worker whose parent is still to go."""

    worker: str
    intermediate: int


class TemplateProcess:
    """Forks workers on request of its agent, whose children they become.

    They live on where the template dies.

    Args:
        control: socket to the agent. A request is a worker's name and place, with its link, memory,
            tables, notice, log and stacks attached, and the board where there is one.
        spec: the job's.
        run_dir: the run's directory.
        host: address of this host.
        secret: of the run's workers.
        begin_again: replaces this process by another that imports nothing ahead; None: it is that
            one.
    """

    def __init__(
        self,
        control: socket.socket,
        spec: JobSpec,
        run_dir: str,
        host: str,
        *,
        secret: bytes,
        begin_again: Callable[[], NoReturn] | None,
    ) -> None:
        self._control, self._spec, self._run_dir, self._host = control, spec, run_dir, host
        self._secret, self._begin_again = secret, begin_again
        self._method = "spawn"
        self._agent = os.getppid()
        self._prepared: Any = None
        self._inherited: Inherited | None = None  # of what the file has opened
        self._births: dict[int, _UnderWay] = {}  # by the pipes that tell of them

    def run(self) -> None:
        """Serve until the agent is gone."""
        try:
            with told_in_words("no worker can be started"):
                self._spec = with_code_in_place(Path(self._run_dir), self._spec)
                os.environ |= self._spec.env  # which says where a module of that code is
                import_own_code(self._spec)
                self._prepare()
        except BrimError as error:
            self._tell(failure_of(error))
            self._control.recv(1)  # nothing can be started any more: wait until the agent is gone
            return
        self._tell(TemplateReady())
        while self._serve():
            pass

    def _prepare(self) -> None:
        """Do once the preparations of every worker."""
        if self._spec.restart:
            self._method = "fork"  # there is nothing to load
            return
        program = program_of(self._spec)
        if self._spec.start_method == "spawn" or not (self._spec.file or program):
            return
        with _collecting_nothing():
            from brim.train.entry import imports
            from brim.worker import gpus, warm

            if self._spec.device == "cpu":
                gpus.hide_gpus()
            warm.import_torch()
            if program and self._begin_again:
                with gpus.gpus_untouched():
                    imports.import_ahead(program, self._spec.seed)
        with gpus.gpus_untouched():
            if self._spec.file:
                self._prepared = warm.prepare_file(self._spec)
        if is_encrypted(self._host, insecure=self._spec.insecure):
            run_identity(self._secret, AS_WORKER).make_ready()  # workers inherit it
        self._inherited = inherited_by_forks()
        can_inherit = not self._inherited.unforkable
        if warm.forking_is_safe() and gpus.forks_can_use_gpus() and can_inherit:
            self._method = "fork"
        elif self._spec.command and self._begin_again:
            self._begin_again()  # each worker imports for itself what is in the way
        elif self._spec.start_method == "fork":
            raise SpecError(
                "--start-method",
                got="fork",
                need="spawn: the file initialised CUDA, started threads, set torch's number of "
                "threads, or opened an LMDB environment with lock=True",
            )
        gc.collect()
        # the collector would otherwise touch, and so copy, every page that workers share
        gc.freeze()

    def _tell(self, message: TemplateMessage) -> None:
        self._control.sendall(frame(_codec.encode(message)))

    def _serve(self) -> bool:
        """Take a request, or the news that a worker is there; False once the agent is gone.

        Workers are born side by side: the next fork begins while the last one is made to be the
        agent's.
        """
        ready = readable([self._control.fileno(), *self._births], None)
        for reader in ready & self._births.keys():
            self._tell(_end_of(self._births.pop(reader), reader))
        return self._control.fileno() not in ready or self._take_request()

    def _take_request(self) -> bool:
        """One request; False once the agent is gone. Descriptors keep requests apart."""
        data, descriptors, _, _ = socket.recv_fds(self._control, 4096, _MOST_DESCRIPTORS)
        if not data:
            return False
        (request,) = FrameBuffer().feed(data)
        name, place = request.decode().split()
        try:
            forked = _fork_for_another_parent()
        except OSError as error:  # the next one may be possible: other processes end
            for descriptor in descriptors:
                os.close(descriptor)
            self._tell(WorkerForked(worker=name, pid=0, problem=_words(error)))
            return True
        if forked is None:
            self._become_worker(
                _Birth._make((name, int(place), *descriptors[:6], tuple(descriptors[6:])))
            )
        for descriptor in descriptors:
            os.close(descriptor)
        reader, intermediate = forked
        self._births[reader] = _UnderWay(name, intermediate)
        return True

    def _become_worker(self, birth: _Birth) -> NoReturn:
        """Become a worker, in the child; never return."""
        status = 1
        try:
            die_with_adopter(self._agent)
            be_called(f"brim-{birth.worker}")
            os.environ[WORKER] = birth.worker
            os.dup2(birth.log, 1)
            os.dup2(birth.log, 2)
            os.close(birth.log)
            self._control.close()
            for reader in self._births:  # of those that were forked just before
                os.close(reader)
            if self._method == "spawn":
                self._execute(birth)
            show_when_asked(birth.stacks)
            context = WorkerContext(
                worker=birth.worker,
                place=birth.place,
                spec=self._spec,
                run_dir=self._run_dir,
                host=self._host,
                secret=self._secret,
                link=socket.socket(fileno=birth.link),
                memory=birth.memory,
                tables=birth.tables,
                notice=birth.notice,
                start_method="fork",
                board=birth.board,
            )
            status = self._work(context)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _work(self, context: WorkerContext) -> int:
        if self._spec.service is not None:
            from brim.launch.replica import run_replica

            return run_replica(context)
        if self._spec.restart:
            from brim.launch.worker import run_command

            return run_command(context)
        from brim.worker import process as worker

        if self._inherited is not None:
            self._inherited.make_own()
        program = program_of(self._spec)
        if program:
            return worker.run_script(program, context)
        return worker.run_file(self._prepared, context)

    def _execute(self, birth: _Birth) -> NoReturn:
        """Become a new program, which finds its context in the environment.

        Raises:
            SystemExit: it cannot be started; the agent was told why.
        """
        os.environ |= environment_for(
            worker=birth.worker,
            place=birth.place,
            spec=self._spec,
            run_dir=self._run_dir,
            host=self._host,
            secret=self._secret,
            link=birth.link,
            memory=birth.memory,
            tables=birth.tables,
            notice=birth.notice,
            stacks=birth.stacks,
            board=birth.board,
        )
        single = (birth.link, birth.memory, birth.tables, birth.notice, birth.stacks)
        for descriptor in (*single, *birth.board):
            os.set_inheritable(descriptor, True)
        command = self._spec.command
        if not command or program_of(self._spec):
            python = command[0] if command else sys.executable
            command = tuple(run_module("brim.worker.process", python=python))
        become_program(command, birth.link)


def become_program(command: tuple[str, ...], link: int) -> NoReturn:
    """Become a program; where that is impossible, tell the agent: another start would not help.

    Args:
        link: descriptor of the worker's socket to its agent.

    Raises:
        SystemExit: it cannot be started.
    """
    try:
        os.execvp(command[0], command)
    except OSError as error:
        from brim.launch.member import not_started

        failure = failure_of(not_started(command[0], error))
        with socket.socket(fileno=link) as agent:
            agent.sendall(frame(Codec[WorkerMessage](WorkerMessage).encode(failure)))
        raise SystemExit(1) from error


def _fork_for_another_parent() -> tuple[int, int] | None:
    """Fork a child that forks a grandchild and ends.

    Returns:
        The pipe that tells of the grandchild, and the child; None in the grandchild.

    Raises:
        OSError: there can be no more processes.
    """
    sys.stdout.flush()  # half a line would be written by each child again
    sys.stderr.flush()
    reader, writer = os.pipe()
    try:
        intermediate = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if intermediate == 0:
        try:
            pid = os.fork()
        except OSError as error:
            os._exit(error.errno or 1)
        if pid:
            os.write(writer, pid.to_bytes(8, "little"))
            os._exit(0)
        os.close(reader)
        os.close(writer)
        return None
    os.close(writer)
    return reader, intermediate


def _end_of(birth: _UnderWay, reader: int) -> WorkerForked:
    """Return the number of a worker, which is its agent's child from here on, or why there is none."""
    _, status = os.waitpid(birth.intermediate, 0)
    pid = int.from_bytes(os.read(reader, 8), "little")
    os.close(reader)
    if pid:
        return WorkerForked(worker=birth.worker, pid=pid)
    code = os.waitstatus_to_exitcode(status)
    problem = _words(OSError(code, os.strerror(code))) if code > 0 else "its parent was killed"
    return WorkerForked(worker=birth.worker, pid=0, problem=problem)


def _words(error: OSError) -> str:
    return words_of_shortage(error) or str(error)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m brim.worker.template", description=__doc__)
    parser.add_argument(
        "--control", type=int, required=True, help="descriptor of the socket to the agent"
    )
    parser.add_argument("--run-dir", required=True, help="with the file of the job")
    parser.add_argument(
        "--host",
        help="address of this host that other hosts can reach; without it, import torch, and wait "
        "for the agent to send it, before the job is read",
    )
    parser.add_argument(
        "--stacks", type=int, required=True, help="descriptor that its stack is written to"
    )
    parser.add_argument(
        "--bare", action="store_true", help="leave all imports of a script to the workers"
    )
    arguments = parser.parse_args()
    die_with_parent(os.getppid())
    show_when_asked(arguments.stacks)
    be_called("brim-template")
    print_by_line()  # and so do the workers
    go_first_when_memory_is_short()  # and so do the workers: agents, masters and other jobs stay
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=arguments.control)
    is_early = arguments.host is None
    if is_early:
        _import_torch()
        arguments.host = control.recv(_LONGEST_ADDRESS).decode()
        if not arguments.host:
            return  # the agent has no job for it
    spec = read_job(Path(arguments.run_dir))
    shared = shared_environment(spec, arguments.run_dir)
    if is_early:
        if Path(spec.directory).is_dir():
            os.chdir(spec.directory or ".")
        if any(os.environ.get(name) != spec.env[name] for name in spec.env):
            _begin_again(arguments, os.environ | shared)  # what was imported may have read them
    os.environ |= shared
    begin_again = (
        None if arguments.bare else partial(_begin_again, arguments, dict(os.environ), "--bare")
    )
    secret = workers_secret(os.environ.pop("BRIM_TOKEN"))  # the token is not for the user's code
    TemplateProcess(
        control, spec, arguments.run_dir, arguments.host, secret=secret, begin_again=begin_again
    ).run()


def _import_torch() -> None:
    """Import the modules of most jobs, as long as there is no job yet."""
    with _collecting_nothing():
        from brim.worker import gpus, warm

        with gpus.gpus_untouched():
            warm.import_torch()


@contextlib.contextmanager
def _collecting_nothing() -> Iterator[None]:
    """Import without the garbage collector, which would spend a quarter of the time of `import torch`.

    It would look at hundreds of thousands of objects several times, all of which stay.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # later looks pass over them, too
        gc.enable()


def _begin_again(
    arguments: argparse.Namespace, environment: Mapping[str, str], *arguments_before: str
) -> NoReturn:
    """Become a new program without the early imports, as the same process."""
    for descriptor in (arguments.control, arguments.stacks):
        os.set_inheritable(descriptor, True)
    show_no_more(arguments.stacks)
    words = [*arguments_before, "--run-dir", arguments.run_dir, "--host", arguments.host]
    words += ["--control", str(arguments.control), "--stacks", str(arguments.stacks)]
    os.execve(sys.executable, run_module("brim.worker.template", *words), environment)


if __name__ == "__main__":
    main()
