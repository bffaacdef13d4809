"""The keeper of a replica on a host that has too little."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from brim.errors import EnvironmentFault
from brim.host.clock import monotonic
from brim.launch.replica import _ReplicaKeeper
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
    keeper = Keeper()
    for count, wait in ((2, False), (3, True)):
        assert keeper._start() is None, "a later start may have one"
        assert keeper.told[-1] == ReplicaNews(replica=f"w1-{count}", state="gone", reason="no port")
        assert (keeper._start_time - monotonic() > 0.5) is wait
