"""Online services: the specs of jobs that answer requests, and the number of replicas by their load.

Pure values. The command of a service is its job's; all else is here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from brim.domain.addresses import is_address
from brim.domain.demand import DAY
from brim.domain.quantities import counted
from brim.errors import SpecError, did_you_mean

REQUESTS, CPU = "requests", "cpu"  # loads that brim measures itself
LOADS = (REQUESTS, CPU)
FIRST_PORT, LAST_PORT = 1024, 65_535  # that need no right of root
MOST_REPLICAS = 1024
NOTICE = 10.0  # seconds that a replica is believed to take until one was seen
GRACE = 10.0  # seconds for requests in flight, and as many from SIGTERM to SIGKILL
# Seconds without an answer to a check, after which a replica counts as hung. One that answers one request
# at a time answers no check meanwhile, and requests may take long.
HANGS_AFTER = 30.0
_LONGEST_NOTICE = 3600.0  # seconds
_SHORTEST_DAY = 30.0  # seconds: of a demo
# What haproxy's file and a request's first line can have, without a space, a quote or a sign of theirs.
_PATH = re.compile(r"/[A-Za-z0-9._~/%?&=+:@,;-]{0,199}")
_URL = re.compile(r"https?://[A-Za-z0-9._~/%?&=+:@,;\[\]-]{1,400}")
_DOT, _SLASH = r"(\.|%2e)", r"(/|\\|%2f|%5c)"
_LEAVES = re.compile(
    rf"{_SLASH}{_DOT}{{1,2}}({_SLASH}|[?;]|$)", re.IGNORECASE
)  # a path's beginning
_ADDRESS = re.compile(r"(?P<host>[0-9.]{7,15}|\[[0-9a-fA-F:.]{2,45}\]):(?P<port>[0-9]{1,5})")
# times as long as a replica takes to come, and seconds, for which fewer would do before one goes
_STAY, _SHORTEST_STAY, _LONGEST_STAY = 3.0, 5.0, 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRule:
    """The bounds of a service's replicas, and what follows from its load between them.

    Args:
        minimum, maximum: replicas.
        per_replica: the load that one replica takes.
        notice: seconds from the wish for another replica until it is ready, until that was measured.
        day: seconds after which the load is expected to repeat itself.

    Raises:
        SpecError: no number of replicas could follow.
    """

    minimum: int = 1
    maximum: int = 1
    per_replica: float = 1.0
    notice: float = NOTICE
    day: float = DAY

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum <= MOST_REPLICAS:
            need = f"1 <= MIN <= MAX <= {MOST_REPLICAS:,}"
            actual = f"{self.minimum}:{self.maximum}"
            raise SpecError("replicas", got=repr(actual), need=need, hint="replicas: 1:4")
        if not (self.per_replica > 0.0 and math.isfinite(self.per_replica)):
            need = "a number above 0: the load that one replica takes"
            hint = "per-replica: 50"
            raise SpecError("per-replica", got=str(self.per_replica), need=need, hint=hint)
        if not 0.0 <= self.notice <= _LONGEST_NOTICE:
            need = f"0 to {_LONGEST_NOTICE:.0f} seconds"
            raise SpecError("notice", got=f"{self.notice:g} s", need=need, hint="notice: 10s")
        if not _SHORTEST_DAY <= self.day <= DAY:
            need = f"{_SHORTEST_DAY:.0f} s to 24 h"
            raise SpecError("day", got=f"{self.day:g} s", need=need, hint="day: 24h")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service(ReplicaRule):
    """An online service as a job: the bounds of its replicas, and how they answer.

    Args:
        port: where its front listens.
        load: `requests` a second at its front, `cpu` (processors that its replicas keep busy), or a
            URL that returns a number.
        health: the path that a healthy replica answers with a status from 200 to 399; empty: one is
            healthy that takes a connection.

    Raises:
        SpecError: it can never be served.
    """

    port: int
    load: str = REQUESTS
    health: str = ""

    def __post_init__(self) -> None:
        ReplicaRule.__post_init__(self)
        if not FIRST_PORT <= self.port <= LAST_PORT:
            need = f"a port from {FIRST_PORT:,} to {LAST_PORT:,}"
            raise SpecError("port", got=str(self.port), need=need, hint="port: 8000")
        if self.load not in LOADS and not is_load_url(self.load):
            need = "requests, cpu, or the http(s) URL of a number"
            hint = did_you_mean(self.load, LOADS) or "load: requests"
            raise SpecError("load", got=repr(self.load[:60]), need=need, hint=hint)
        if self.health and not _PATH.fullmatch(self.health):
            need = "a path that begins with /, of letters, digits and ._~/%?&=+:@,;-"
            hint = "health: /healthz"
            raise SpecError("health", got=repr(self.health[:60]), need=need, hint=hint)


def is_load_url(text: str) -> bool:
    """Return whether a text is the URL of a load: at most 400 characters that need no quotes."""
    return _URL.fullmatch(text) is not None


def check_url_prefix(prefix: str, *, field: str, hint: str) -> None:
    """Raises SpecError where a text is not the beginning of URLs of one host."""
    _, _, rest = prefix.partition("://")
    host, slash, path = rest.partition("/")
    if not (is_load_url(prefix) and host and slash and not _LEAVES.search(f"/{path}")):
        need = "the beginning of a URL, with all of its host and a slash"
        raise SpecError(field, got=repr(prefix[:60]), need=need, hint=hint)


def is_allowed(url: str, prefixes: Collection[str]) -> bool:
    """Return whether a URL begins with one of these prefixes, and does not leave it by its path.

    >>> is_allowed("http://metrics:9090/a?b", ["http://metrics:9090/"])
    True
    >>> is_allowed("http://metrics:9090/a/%2e%2e/b", ["http://metrics:9090/a/"])
    False
    """
    path = url.partition("?")[0]
    return is_load_url(url) and url.startswith(tuple(prefixes)) and not _LEAVES.search(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRules:
    """The ports, address and URLs that an administrator lets services have.

    Args:
        first_port, last_port: of their fronts.
        address: of this host, on which fronts listen; empty: the one at which nodes join, or
            loopback where none can.
        urls: how the URLs of loads begin that a tenant may name.
        certificate, key: files on this host, by which fronts speak HTTPS; no key: it is in the other
            file. Without a certificate, fronts speak plain HTTP.

    Raises:
        SpecError: no front could listen.
    """

    first_port: int = FIRST_PORT
    last_port: int = LAST_PORT
    address: str = ""
    urls: tuple[str, ...] = ()
    certificate: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        for name, path in (("certificate", self.certificate), ("key", self.key)):
            if path and not path.startswith("/"):
                hint = f"{name}: /etc/brim/front.pem"
                raise SpecError(f"services: {name}", got=repr(path), need="a full path", hint=hint)
        if self.key and not self.certificate:
            raise SpecError("services: key", got="no certificate", need="the one that it is of")
        if not FIRST_PORT <= self.first_port <= self.last_port <= LAST_PORT:
            need = f"FIRST-LAST from {FIRST_PORT:,} to {LAST_PORT:,}"
            actual = f"{self.first_port}-{self.last_port}"
            raise SpecError("services: ports", got=actual, need=need, hint="ports: 8000-8099")
        # One of a single link is no address to other hosts.
        if self.address and ("%" in self.address or not is_address(self.address)):
            need = "an address of this host"
            actual = repr(self.address[:60])
            raise SpecError("services: address", got=actual, need=need, hint="address: 10.0.0.7")

        for url in self.urls:
            hint = "urls: [http://10.0.0.9:9090/]"
            check_url_prefix(url, field="services: urls", hint=hint)

    def allows(self, port: int) -> bool:
        """Return whether a front may have this port."""
        return self.first_port <= port <= self.last_port


NO_RULES = ServiceRules()


class ServiceReplica(NamedTuple):
    """A replica of a service at a look.

    Attributes:
        id: its worker's name, and the number of its start there: `w2-1`.
        host, port: where it answers.
        state: `ready` or `leaving`.
        cpu: processors that it keeps busy, where it says so.
    """

    id: str
    host: str
    port: int
    state: str
    cpu: float = 0.0

    @property
    def is_ready(self) -> bool:
        return self.state == "ready"


def address_in(text: str) -> tuple[str, int] | None:
    """Return host and port of a replica's address; None: it is none.

    A job's records are its owner's, so what they say is not believed.

    >>> address_in("127.0.0.1:4000"), address_in("[::1]:4000"), address_in("a:1; shutdown")
    (('127.0.0.1', 4000), ('::1', 4000), None)
    """
    found = _ADDRESS.fullmatch(text)
    if found is None:
        return None
    host, port = found["host"].strip("[]"), int(found["port"])
    return (host, port) if is_address(host) and 0 < port <= LAST_PORT else None


def describe_ready(ready: int | None, wanted: int) -> str:
    """Return how many replicas of a service are ready, in words; None: nobody has looked yet.

    >>> describe_ready(2, 3), describe_ready(1, 1), describe_ready(None, 3)
    ('2 of 3 replicas ready', '1 of 1 replica ready', '3 replicas, not looked at by the scheduler yet')
    """
    if ready is None:
        return f"{counted(wanted, 'replica')}, not looked at by the scheduler yet"
    return f"{ready} of {counted(wanted, 'replica')} ready"


class ReplicaScale(NamedTuple):
    """The replicas that a service is to have, and since when fewer would do.

    Attributes:
        target: replicas.
        fewer_start: since when fewer would do; None: all of them are needed.
        peak: the most that were needed at any moment since.
    """

    target: int
    fewer_start: float | None = None
    peak: int = 0


def stay_of(notice: float) -> float:
    """Return the seconds for which fewer replicas must do before one goes.

    One that takes long to come back goes later.

    >>> stay_of(1.0), stay_of(20.0), stay_of(1000.0)
    (5.0, 60.0, 300.0)
    """
    return min(_LONGEST_STAY, max(_SHORTEST_STAY, _STAY * notice))


def rescaled(
    scale: ReplicaScale, service: ReplicaRule, *, foreseen: float, stay: float, now: float
) -> ReplicaScale:
    """Return how many replicas a service is to have: more at once, fewer only after a while.

    Args:
        foreseen: the most load that is expected until another replica could be ready.
        stay: seconds for which fewer must have been enough.

    >>> service = Service(port=8000, minimum=1, maximum=4, per_replica=10.0)
    >>> scale = rescaled(ReplicaScale(1), service, foreseen=25.0, stay=5.0, now=0.0)
    >>> scale.target
    3
    >>> scale = rescaled(scale, service, foreseen=5.0, stay=5.0, now=1.0)
    >>> scale.target, rescaled(scale, service, foreseen=15.0, stay=5.0, now=6.0).target
    (3, 2)
    """
    load = max(0.0, foreseen) if math.isfinite(foreseen) else 0.0
    needed = math.ceil(min(load / service.per_replica, service.maximum) - 1e-9)
    needed = max(service.minimum, needed)
    current = min(service.maximum, max(service.minimum, scale.target))
    if needed >= current:
        return ReplicaScale(needed)
    peak = max(needed, scale.peak) if scale.fewer_start is not None else needed
    start = now if scale.fewer_start is None else scale.fewer_start
    if now - start < stay:
        return ReplicaScale(current, start, peak)
    return ReplicaScale(peak, now, needed) if needed < peak else ReplicaScale(peak)
