"""Taking a port of this host, and saying why it cannot be taken."""

from __future__ import annotations

import socket

import pytest

from brim.errors import EnvironmentFault
from brim.wire.listening import address_towards, listen_on

NOT_OURS = "192.0.2.1"  # of documents: RFC 5737


def test_who_has_the_port_is_named_only_where_it_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
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


def test_an_answer_is_not_held_back_until_the_one_before_is_acknowledged() -> None:
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
    ("master", "own"), [("127.0.0.1:4000", "127.0.0.1"), ("[::1]:4000", "::1")]
)
def test_the_address_towards_a_master_is_of_its_family(master: str, own: str) -> None:
    assert address_towards(master) == own
