"""The keeper of a replica on a host that has too little."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from brim.errors import EnvironmentFault
from brim.launch.command import CommandProcess
from brim.launch.replica import _Replica, _ReplicaKeeper
from brim.wire.listening import take_port
from brim.wire.messages import ReplicaNews, WorkerMessage


class Keeper(_ReplicaKeeper):
    """One without a link, which has had a replica that was ready."""

    def __init__(self) -> None:
        context: Any = SimpleNamespace(host="127.0.0.1", worker="w1")
        self._context = context
        self._count, self._failures, self._port, self._was_ready = 1, 0, 0, True
        self._start_time = 0.0
        self.told: list[WorkerMessage] = []

    def _tell(self, message: WorkerMessage) -> None:
        self.told.append(message)


@pytest.mark.parametrize("fault", [OSError("no port"), EnvironmentFault("no port")], ids=type)
def test_successor_without_a_port_ends_no_replica(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_no_port(*_: object) -> None:
        raise fault

    monkeypatch.setattr("brim.launch.replica.take_port", take_no_port)
    monkeypatch.setattr("brim.launch.replica.monotonic", lambda: 100.0)
    keeper = Keeper()
    for count, wait in ((2, False), (3, True)):
        assert keeper._start() is None, "a later start may have one"
        assert keeper.told[-1] == ReplicaNews(replica=f"w1-{count}", state="gone", reason="no port")
        assert (keeper._start_time - 100.0 > 0.5) is wait


def test_answer_of_another_account_is_no_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took the port between two starts: the next one is at another."""
    strangers = {"account web"}
    monkeypatch.setattr("brim.launch.replica.foreign_listener", lambda *_: "".join(strangers))
    with take_port("127.0.0.1") as listener:
        port = listener.getsockname()[1]
        replica = _Replica("w1-1", "127.0.0.1", port, cast(CommandProcess, None))

        def check() -> str:
            replica._check_time = 0.0
            return replica.check("")

        assert check() == f"account web listens on its port {port}"
        assert replica.ready_since is None
        strangers.clear()
        assert check() == ""
        assert replica.ready_since is not None
