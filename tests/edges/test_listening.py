"""Taking a port of this host, and saying why it cannot be taken."""

from __future__ import annotations

import contextlib
import socket

import pytest

from brim.backends.environment import environment_of_jobs
from brim.domain.options import PORTS_VARIABLE
from brim.errors import EnvironmentFault
from brim.wire import listening
from brim.wire.listening import address_towards, listen_on, take_port

NOT_OURS = "192.0.2.1"  # of documents: RFC 5737


def test_a_ports_owner_is_named_only_when_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            EnvironmentFault, match=rf"on 127\.0\.0\.1:{port}: Address already .* \(it is process"
        ):
            listen_on("127.0.0.1", port, backlog=1, hint="")
        with pytest.raises(
            EnvironmentFault, match=rf"on {NOT_OURS}:{port}: Cannot assign .* address; another"
        ):
            listen_on(NOT_OURS, port, backlog=1, hint="another")


def test_an_address_of_ipv6_has_brackets_in_words() -> None:
    with pytest.raises(EnvironmentFault, match=r"cannot listen on \[2001:db8::1\]:4001: "):
        listen_on("2001:db8::1", 4001, backlog=1, hint="")


def test_answers_are_not_delayed_by_acknowledgements() -> None:
    """Headers and body are two pieces: the second would wait for 40 ms, as long as others take to
    acknowledge.
    """
    with (
        listen_on("127.0.0.1", 0, backlog=1, hint="") as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    ("master", "address"), [("127.0.0.1:4000", "127.0.0.1"), ("[::1]:4000", "::1")]
)
def test_the_local_address_matches_the_masters_family(master: str, address: str) -> None:
    assert address_towards(master) == address


def test_ports_come_from_the_given_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As for an address that other hosts can call, of which this host may have none."""
    monkeypatch.setattr(listening, "is_loopback", lambda host: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = min(server.getsockname()[1], 65535 - 20)
    monkeypatch.setenv(PORTS_VARIABLE, f"{first}-{first + 19}")
    with contextlib.ExitStack() as undo:
        found = set[int]()

        def take_all() -> None:
            while True:
                listener = undo.enter_context(listen_on("127.0.0.1", 0, backlog=1, hint=""))
                found.add(listener.getsockname()[1])

        with pytest.raises(EnvironmentFault) as full:
            take_all()
        assert len(found) >= 10  # others of this host may have a few
        assert found <= set(range(first, first + 20))
        assert f"all 20 ports of {first}-{first + 19} are taken; --ports (or BRIM" in str(
            full.value
        )
        with pytest.raises(EnvironmentFault, match="is process"):
            listen_on("127.0.0.1", min(found), backlog=1, hint="")  # one that is named is that one


def test_a_taken_single_port_range_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "is_loopback", lambda host: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv(PORTS_VARIABLE, f"{port}-{port}")
        with pytest.raises(EnvironmentFault, match=f"port {port} is taken; --ports"):
            take_port("127.0.0.1")


def test_loopback_ports_ignore_the_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PORTS_VARIABLE, "1-1")
    for host in ("127.0.0.1", "localhost"):
        with listen_on(host, 0, backlog=1, hint="") as listener:
            assert listener.getsockname()[1] > 1


def test_jobs_have_the_range_of_their_host() -> None:
    assert environment_of_jobs({PORTS_VARIABLE: "4100-4199"}, {}) == {PORTS_VARIABLE: "4100-4199"}
