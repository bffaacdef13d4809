"""The place of this process among those that a launcher has started, and the way to the others."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.errors import EnvironmentFault, SpecError
from brim.host.clock import monotonic, sleep
from brim.host.installation import command_for
from brim.wire.listening import is_any_interface, own_listeners, stop_listening, take_port
from brim.xgboost.workers import Collectives, LoneWorker

_TO_MEET = 60.0  # seconds for the first worker to listen, once another one looks for it
_BETWEEN_LOOKS = 0.05  # seconds between two looks for it
_COLLECTIVE = 1800  # seconds for all others to take part in a collective
_PLACES = re.compile(r"^(- )?(\[[\w.:|]+\]:? *)?(\S+\.(cc|h|cu):\d+: *)?(Check failed: )?")
_OLDEST, _TOO_NEW = (3, 2), (4,)  # versions of xgboost


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a process.

    Args:
        rank: of `size` processes.
        address, port: where the first one listens.
        checkpoints: a directory that outlives this start; None: this process keeps nothing.
    """

    rank: int
    size: int
    address: str
    port: int
    checkpoints: Path | None


def place_of(environment: Mapping[str, str]) -> Place:
    """Return the place that a launcher's variables name.

    Raises:
        SpecError: they name no place.

    >>> place_of({}).size
    1
    """
    names = ("RANK", "WORLD_SIZE", "MASTER_PORT")
    numbers = {name: environment.get(name, "0") for name in names}
    for name, number in numbers.items():
        if not number.isdecimal():
            raise SpecError(name, got=repr(number), need="a whole number, from the launcher")
    size, port = max(int(numbers["WORLD_SIZE"]), 1), int(numbers["MASTER_PORT"])
    address = environment.get("MASTER_ADDR", "")
    if size > 1 and not (address and port):
        raise SpecError(
            "WORLD_SIZE",
            got=f"{size} without MASTER_ADDR and MASTER_PORT",
            need="both, from the launcher",
            hint=f"brim run --workers {size} -- python …",
        )
    if size > 1 and is_any_interface(address):
        raise SpecError(
            "MASTER_ADDR",
            got=repr(address),
            need="the address of one interface, at which all workers reach the first one",
            hint="brim run --listen 10.0.0.7:4000",
        )
    # The first process of each host keeps the rounds: hosts need no disk that they share.
    local_rank = environment.get("LOCAL_RANK", numbers["RANK"] if size > 1 else "0")
    saved = environment.get("BRIM_CHECKPOINTS") if local_rank == "0" else None
    return Place(
        rank=int(numbers["RANK"]) if size > 1 else 0,
        size=size,
        address=address,
        port=port,
        checkpoints=Path(saved) if saved else None,
    )


def library() -> Any:
    """Return the module xgboost.

    Raises:
        SpecError: it is missing, or of a version that was not tried.
    """
    try:
        import xgboost
    except ModuleNotFoundError as error:
        raise SpecError(
            "brim.xgboost",
            got="a Python without xgboost",
            need="xgboost 3.2 or newer",
            hint=command_for("xgboost"),
        ) from error
    version = tuple(int(part) for part in xgboost.__version__.split(".")[:2])
    if not _OLDEST <= version < _TOO_NEW:
        raise SpecError(
            "xgboost",
            got=xgboost.__version__,
            need="3.2 or newer, below 4",
            hint="pip install 'xgboost<4'",
        )
    return xgboost


class _Connected:
    """All workers of a start, over xgboost's own collectives."""

    def __init__(self, xgb: Any, place: Place) -> None:
        self._collective, self._error = xgb.collective, xgb.core.XGBoostError
        self.rank, self.size = place.rank, place.size

    def add(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sums over all workers, of the same shape."""
        return self._reduced(values, self._collective.Op.SUM)

    def largest(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the maxima over all workers, of the same shape."""
        return self._reduced(values, self._collective.Op.MAX)

    def pass_on(self, content: bytes) -> bytes:
        """Return the content of the worker that has one: the sum of its bytes and of zeros."""
        length = int(self.add(np.array([len(content)], np.int64))[0])
        buffer = np.zeros(length, np.uint8)
        buffer[: len(content)] = np.frombuffer(content, np.uint8)
        return self.add(buffer).tobytes() if length else b""

    def _reduced(self, values: NDArray[Any], operation: Any) -> NDArray[Any]:
        try:
            reduced: NDArray[Any] = self._collective.allreduce(values, operation)
        except self._error as error:
            raise lost_worker(error) from None
        return reduced.reshape(values.shape)


@contextlib.contextmanager
def tracker_of(xgb: Any, place: Place) -> Iterator[None]:
    """Have xgboost's tracker listen for all workers, where this process is the first of several.

    Raises:
        EnvironmentFault: the port is taken.
    """
    if place.size == 1 or place.rank:
        yield
        return
    from xgboost.tracker import RabitTracker

    try:
        tracker = RabitTracker(
            n_workers=place.size,
            host_ip=place.address,
            port=place.port,
            sortby="task",
            timeout=_COLLECTIVE,
        )
        tracker.start()
    except xgb.core.XGBoostError as error:
        raise EnvironmentFault(
            f"cannot listen on {place.address}:{place.port}: {reason_of(error)}", retryable=True
        ) from error
    kind = xgb.core.XGBoostError
    try:
        with _orderly(partial(tracker.wait_for, _COLLECTIVE), kind):
            yield
    finally:
        with contextlib.suppress(kind):  # it raises where a worker was lost
            tracker.free()


@contextlib.contextmanager
def connected(xgb: Any, place: Place) -> Iterator[Collectives]:
    """Be connected with all workers, until all of them leave this.

    Raises:
        EnvironmentFault: the first worker does not listen.
    """
    if place.size == 1:
        yield LoneWorker()
        return
    deadline = monotonic() + _TO_MEET
    listeners = own_listeners()
    while True:
        try:
            with warnings.catch_warnings(action="ignore"):
                xgb.collective.init(
                    dmlc_communicator="rabit",
                    dmlc_tracker_uri=place.address,
                    dmlc_tracker_port=place.port,
                    dmlc_task_id=f"{place.rank:08d}",  # sorted as text
                    dmlc_retry=1,
                    dmlc_timeout=_COLLECTIVE,
                )
            break
        except xgb.core.XGBoostError as error:  # the first one is not so far yet
            if monotonic() > deadline:
                raise EnvironmentFault(
                    f"no worker listens on {place.address}:{place.port}: {reason_of(error)}",
                    retryable=True,
                ) from error
            sleep(_BETWEEN_LOOKS)
    _close_ports(place, listeners)
    with _orderly(partial(_finalize, xgb), xgb.core.XGBoostError):
        yield _Connected(xgb, place)


def _close_ports(place: Place, listeners: Container[int]) -> None:
    """Listen no more, once all workers are connected.

    XGBoost authenticates nobody, at the port of its tracker and at one of each worker, which it has
    for failures of others. Nobody needs them any more: the launcher ends the workers itself.

    Args:
        listeners: descriptors that were there before the workers connected.
    """
    for descriptor, port in own_listeners().items():
        if descriptor not in listeners or (place.rank == 0 and port == place.port):
            stop_listening(descriptor)


def _finalize(xgb: Any) -> None:
    with warnings.catch_warnings(action="ignore"):  # of ports that it does not find
        xgb.collective.finalize()


def next_port_of(place: Place, workers: Collectives) -> int:
    """Return a free port, chosen by the first worker: XGBoost cannot listen on one again at once."""
    if place.size == 1:
        return place.port
    port = b""
    if place.rank == 0:
        port = b"%d" % place.port  # if none is free, the next training says so: there may be none
        with (
            contextlib.suppress(EnvironmentFault, OSError),
            take_port(place.address) as listener,
        ):
            port = b"%d" % listener.getsockname()[1]
    return int(workers.pass_on(port))


@contextlib.contextmanager
def _orderly(leave: Callable[[], None], error: type[Exception]) -> Iterator[None]:
    """Leave the other workers at an end that all have agreed on, SystemExit among them.

    After any other error some may be gone, and leaving in order would wait for them.
    """
    try:
        yield
    except SystemExit:
        with contextlib.suppress(error):
            leave()
        raise
    with contextlib.suppress(error):  # one has died at the very end: all rounds are kept
        leave()


def lost_worker(error: Exception) -> EnvironmentFault:
    """Return the fault behind an error of xgboost's collectives.

    It is raised without the error, whose trace of C++ all survivors would print.
    """
    return EnvironmentFault(f"another worker was lost ({reason_of(error)})", retryable=True)


def reason_of(error: Exception) -> str:
    """Return the reason in an error of XGBoost, without its places in C++.

    >>> reason_of(ValueError("[21:01:13] /src/result.cc:83: [a.h:1|21:01:13]:\\n\\n"
    ...     "- [a.cc:1|21:01:13]: Ring failed.\\n- [b.cc:2|21:01:13]: Encountered EOF.\\nStack trace:\\n"))
    'Encountered EOF.'
    """
    text = str(error).partition("Stack trace:")[0]
    lines = [_PLACES.sub("", line).strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "no reason given")
