"""The words of haproxy: the file of a front, its commands, and its answers. Pure.

No text of a user's goes into them but the path of a check, of which `brim.domain.services` lets
letters, digits and a few signs pass.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from brim.domain.services import GRACE, HANGS_AFTER, Service, ServiceReplica
from brim.wire.haproxy import SOCKET

LISTENER = "BRIM_FRONT"  # the variable that has the descriptor of a front's socket
CERTIFICATE = "front.pem"
_FEWEST_SLOTS = 32
_MAINTENANCE, _DRAIN = 0x01, 0x08  # bits of a server's administrative state
_FREE = ("127.0.0.1", 1)  # the address of a slot that nobody has
# Nobody listens there: a request that finds no replica is tried again until there is one.
_WAITING = "server waiting 127.0.0.1:1 backup"
_FALL = 2  # failed checks in a row, after which a replica is down
# Requests to a host that has died without a word would wait for hours, and one that was started again
# at its address is soon back.
# A connection that fails brings the next checks forward: a request is tried on other replicas at once, so
# where several have died together, its tries are soon used up. Not `sudden-death`: a replica that is
# marked down before its last requests are tried again has them cut.
_CHECKS = (
    f"inter 1s fastinter 100ms downinter 200ms fall {_FALL} rise 1 "
    "on-marked-down shutdown-sessions observe layer4 error-limit 1 on-error fastinter"
)
_RETRY = 1000  # milliseconds between two tries where no replica is up, and for a connection
_TRIES = 10


def slots_of(service: Service) -> int:
    """Return how many replicas a front has room for: those that leave are there, too."""
    return max(_FEWEST_SLOTS, 2 * service.maximum)


def front_file(
    service: Service,
    *,
    user: str = "",
    group: str = "",
    is_encrypted: bool = False,
    grace: float = GRACE,
) -> str:
    """Return the file of a front, which finds its listening socket by a variable.

    Args:
        user, group: the account that it goes on as; empty: the one that starts it.
        is_encrypted: it speaks HTTPS, by the certificate in its folder.
        grace: seconds for its requests, once a successor has taken over.
    """
    slots = slots_of(service)
    account = f"    user {user}\n    group {group}\n" if user else ""
    tls = f" ssl crt {CERTIFICATE} ssl-min-ver TLSv1.2" if is_encrypted else ""
    scheme = "    http-request set-header X-Forwarded-Proto https\n" if is_encrypted else ""
    check = ""
    if service.health:
        send = f"http-check send meth GET uri {service.health} ver HTTP/1.1 hdr Host localhost"
        check = f"    option httpchk\n    {send}\n"
    return f"""\
# Written by brim; changes are lost.
global
{account}    stats socket unix@{SOCKET} mode 600 level admin
    log stdout format raw daemon notice
    hard-stop-after {max(1, round(1000 * grace))}ms

defaults
    mode http
    log global
    timeout connect {_RETRY}ms
    timeout client 1h
    timeout server 1h
    timeout queue 30s
    timeout check {round(1000 * HANGS_AFTER / _FALL)}ms
    timeout http-request 30s
    timeout http-keep-alive 30s

frontend front
    bind "fd@${{{LISTENER}}}"{tls}
{scheme}    default_backend replicas

backend replicas
    balance random(2)
    option http-server-close
    http-reuse never
    retries {_TRIES}
    option redispatch 1
    retry-on conn-failure empty-response
    http-request disable-l7-retry if !METH_GET
{check}    server-template replica 1-{slots} {_FREE[0]}:{_FREE[1]} check {_CHECKS} disabled
    {_WAITING}
"""


class Slot(NamedTuple):
    """A slot of a front.

    Attributes:
        name: of its server.
        host, port: of the replica that has it.
        state: `maint`, `drain` or `ready`.
    """

    name: str
    host: str
    port: int
    state: str


SHOW_SLOTS, SHOW_COUNTS, SHOW_PROCESS = "show servers state replicas", "show stat", "show info"


def slots_in(answer: str) -> list[Slot]:
    """Return the slots of an answer to `show servers state`.

    >>> head = "1\\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_port\\n"
    >>> slots_in(head + "3 replicas 1 replica1 127.0.0.1 2 8 4000\\n3 replicas 9 waiting 127.0.0.1 2 0 1\\n")
    [Slot(name='replica1', host='127.0.0.1', port=4000, state='drain')]
    """
    names: list[str] = []
    found = []
    for line in answer.splitlines():
        words = line.split()
        if line.startswith("#"):
            names = words[1:]
        elif names and len(words) >= len(names):
            row = dict(zip(names, words, strict=False))
            if row["srv_name"].startswith("replica"):
                bits = int(row["srv_admin_state"])
                state = "maint" if bits & _MAINTENANCE else "drain" if bits & _DRAIN else "ready"
                found.append(Slot(row["srv_name"], row["srv_addr"], int(row["srv_port"]), state))
    return found


def commands_for(
    slots: Sequence[Slot],
    replicas: Sequence[ServiceReplica],
    *,
    missed: Collection[tuple[str, int]] = (),
) -> list[str]:
    """Return the commands by which a front sends its requests to the replicas that are ready.

    Args:
        slots: as they are.
        replicas: as they were seen last.
        missed: addresses of replicas that may be started again there at any moment. The front itself
            sees whether they answer.

    >>> slots = [Slot("replica1", "127.0.0.1", 4000, "ready"), Slot("replica2", "127.0.0.1", 1, "maint")]
    >>> leaving = ServiceReplica("w1-1", "127.0.0.1", 4000, "leaving")
    >>> for command in commands_for(slots, [leaving, ServiceReplica("w2-1", "::1", 4001, "ready")]):
    ...     print(command)
    disable health replicas/replica1
    set server replicas/replica1 state drain
    set server replicas/replica2 addr ::1 port 4001
    enable health replicas/replica2
    set server replicas/replica2 state ready
    """
    states = {"ready": "ready", "leaving": "drain"}
    desired = {
        (replica.host, replica.port): states[replica.state]
        for replica in replicas
        if replica.state in states
    }
    commands = []
    used = set()
    for slot in slots:
        place = (slot.host, slot.port)
        if slot.state == "maint":
            continue
        fallback = "ready" if place in missed and slot.state == "ready" else "maint"
        state = desired.get(place, fallback) if place not in used else "maint"
        used.add(place)
        if state != slot.state:
            commands += _changes(slot.name, state)
    free = iter([slot.name for slot in slots if slot.state == "maint"])
    for place, state in desired.items():
        if place in used or state != "ready":
            continue
        name = next(free, "")
        if not name:
            break
        host, port = place
        commands.append(f"set server replicas/{name} addr {host} port {port}")
        commands += _changes(name, "ready")
    return commands


def _changes(name: str, state: str) -> list[str]:
    """Return the commands that change a slot.

    A replica that leaves is not checked: it may take no connection any more, and still answer requests.
    """
    checks = "disable" if state == "drain" else "enable"
    return [f"{checks} health replicas/{name}", f"set server replicas/{name} state {state}"]


class Counts(NamedTuple):
    """Counts of a front since it began.

    Attributes:
        requests: that came, and could be read as HTTP.
        retries: connections that were tried again.
        errors: answers with a status from 500.
    """

    requests: int
    retries: int
    errors: int


def counts_in(answer: str) -> Counts | None:
    """Return the counts of an answer to `show stat`; None: it has none.

    >>> head = "# pxname,svname,stot,wretr,hrsp_5xx,"
    >>> counts_in(head + "\\nfront,FRONTEND,9,,0,\\nreplicas,BACKEND,12,2,3,\\n")
    Counts(requests=12, retries=2, errors=0)
    """
    rows = {
        (row.get("pxname", ""), row.get("svname", "")): row
        for row in csv.DictReader(io.StringIO(answer.removeprefix("# ").strip()))
    }
    front, replicas = rows.get(("front", "FRONTEND")), rows.get(("replicas", "BACKEND"))
    if front is None or replicas is None:
        return None
    return Counts(
        # The front itself counts invalid requests as well; the replicas' `req_tot`, only what has ended.
        requests=_number(replicas, "stot"),
        retries=_number(replicas, "wretr"),
        errors=_number(front, "hrsp_5xx"),
    )


def _number(row: Mapping[str, str | None], name: str) -> int:
    text = row.get(name) or "0"
    return int(text) if text.isdecimal() else 0


def process_in(answer: str) -> int:
    """Return the number of the process that answers `show info`; 0: it does not say.

    >>> process_in("Name: HAProxy\\nPid: 4711\\n")
    4711
    """
    for line in answer.splitlines():
        name, _, value = line.partition(": ")
        if name == "Pid" and value.strip().isdecimal():
            return int(value)
    return 0
