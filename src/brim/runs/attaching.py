"""A person at the terminal of an interactive job, from its submission to its end.

On this host a command needs no job for that: it is given the terminal itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn

from brim.client import AttachedTerminal, Client
from brim.coordination.job.launches import Seat, variables_of
from brim.errors import EnvironmentFault, SpecError
from brim.host.process import readable
from brim.host.raw_terminal import is_at_terminal, raw_terminal, show, window
from brim.wire.cluster import MOST_TYPED, Input, Window
from brim.wire.listening import joined_address, take_port

_SIGN_OF_LIFE = 5.0  # seconds between two words to the scheduler at least
_TO_STOP = 1.0  # seconds for a word that is on its way in the end
_SIGNALLED = 128  # and the number of the signal: the exit status of a program that one has ended
_FAILED = 1
_HOST = "127.0.0.1"
_ALONE = Seat(rank=0, size=1, local_rank=0, local_size=1, group_rank=0, groups=1)


def check_terminal_here() -> None:
    """Raises SpecError where nobody is at a terminal."""
    if not is_at_terminal():
        raise SpecError(
            "--tty",
            got="standard input or output that is no terminal",
            need="a terminal, at which the program is used",
            hint="leave --tty out, or type the command at a terminal",
        )


def hand_over(command: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Become a command that has this process's terminal, as the only one of a job.

    So its windows, signals and exit status are the terminal's, and nothing of brim is between them.

    Args:
        variables: of its environment, beside this process's and those that torchrun sets.

    Raises:
        SpecError: it cannot be started.
    """
    with take_port(_HOST) as listener:  # closed as the command begins: the port is its own then
        port = listener.getsockname()[1]
        of_job = variables_of(
            _ALONE,
            [joined_address(_HOST, port)],
            host=_HOST,
            port=port,
            start=0,
            maximum=1,
            run="terminal",
        )
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and programs would, too
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], list(command), {**os.environ, **of_job, **variables})
    except OSError as error:
        raise SpecError(
            "COMMAND",
            got=f"{command[0]!r}, which cannot be started ({error.strerror})",
            need="a program that can be run",
            hint="brim run --tty -- bash",
        ) from error


def stay_at_terminal(client: Client, job: str, *, notice: Callable[[str], object]) -> int:
    """Lend this process's terminal to a job's program until the job ends; the exit status.

    Where this ends early, the job ends, too.

    Args:
        notice: is told of the job's waits and its end.

    Raises:
        EnvironmentFault, SpecError: it cannot be attached, or the connection has broken.
    """
    rows, columns = window()
    attached = client.attach(job, rows=rows, columns=columns)
    try:
        return _attend(attached, job, notice)
    except KeyboardInterrupt:  # before the program has the terminal
        notice(f"{job}: cancelled")
        raise
    except EnvironmentFault as fault:
        raise EnvironmentFault(
            f"{fault}; {job} ends: its program is hung up, and killed after its grace"
        ) from fault
    finally:
        attached.close()


def _attend(attached: AttachedTerminal, job: str, notice: Callable[[str], object]) -> int:
    status, is_within_line = _FAILED, False
    with contextlib.ExitStack() as stack:
        typing: _Typing | None = None
        raw = stack.enter_context(contextlib.ExitStack())
        for news in attached.news():
            if news.terminal:
                typing = stack.enter_context(_typing(attached))
            if news.opened and typing is not None:
                raw.enter_context(raw_terminal())
                typing.begin()
            if news.shown:
                show(news.shown)
                is_within_line = not news.shown.endswith(b"\n")
            if news.status is not None:
                raw.close()
                status = news.status if news.status >= 0 else _SIGNALLED - news.status
            if news.note:
                raw.close()
                if is_within_line:  # as after a prompt
                    show(b"\n")
                    is_within_line = False
                notice(f"{job}: {news.note}")
    return status


@contextlib.contextmanager
def _typing(attached: AttachedTerminal) -> Iterator[_Typing]:
    typing = _Typing(attached)
    usual = signal.signal(signal.SIGWINCH, lambda *_: typing.wake())
    typing.start()
    try:
        yield typing
    finally:
        signal.signal(signal.SIGWINCH, usual)
        typing.stop()


class _Typing:
    """A thread that passes on keys, and the size of the window where it changes.

    Keys that come while a word is on its way are in the next one. So somebody who types fast, or
    pastes, sends no more words than the network takes.
    """

    def __init__(self, attached: AttachedTerminal) -> None:
        self._attached = attached
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._is_open = self._is_over = False
        self._thread = threading.Thread(target=self._run, name="brim-typing", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def begin(self) -> None:
        """Pass on keys from now on."""
        self._is_open = True
        self.wake()

    def wake(self) -> None:
        """Look for changes."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def stop(self) -> None:
        self._is_over = True
        self.wake()
        self._thread.join(_TO_STOP)
        if not self._thread.is_alive():
            os.close(self._reader)
            os.close(self._writer)

    def _run(self) -> None:
        try:
            self._pass_on()
        except (EnvironmentFault, OSError):
            if not self._is_over:
                self._attached.hang_up()  # so that the reader of the news hears of it

    def _pass_on(self) -> None:
        sent_window = window()
        while not self._is_over:
            ready = readable([self._reader, *([0] if self._is_open else [])], _SIGN_OF_LIFE)
            data = os.read(0, MOST_TYPED) if 0 in ready else b""
            if 0 in ready and not data:
                self._is_open = False  # the terminal is gone, and SIGHUP on its way
            if self._reader in ready:
                os.read(self._reader, MOST_TYPED)
            size = window()
            changed = Window(rows=size[0], columns=size[1]) if size != sent_window else None
            sent_window = size
            if not self._is_over:
                self._attached.type(Input(data=data, window=changed))
