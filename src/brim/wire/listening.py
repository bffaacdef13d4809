"""Ports that this host listens on: taking one, and naming the owner of a taken one."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import socket
import stat
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address

from brim.domain.options import PORTS_VARIABLE, read_ports
from brim.errors import EnvironmentFault
from brim.host.process import name_of
from brim.host.procfs import read_proc

_STRIDE = 7  # so that processes that are started together begin at different ones
_LISTENS = "0A"  # in the kernel's tables of sockets
_EVERY_INTERFACE = "::"
# A host that is gone without a word leaves no connection open for ever.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


def take_port(
    host: str,
    port: int = 0,
    *,
    backlog: int = 128,
    family: int | None = None,
    dual_stack: bool = False,
) -> socket.socket:
    """Listen on a port; where any will do, and other hosts can call it, on one of $BRIM_PORTS.

    Args:
        host: name or address, without brackets.
        port: 0 for any that is free.
        family: of the address; None: what it looks like.
        dual_stack: addresses of IPv4 can call, too.

    Raises:
        EnvironmentFault: all ports of the range are taken.
        OSError: the port is, or it is no port of this host.
    """
    family = family_of(host) if family is None else family
    ports = [port] if port or is_loopback(host) else _ports()
    for candidate in ports:
        try:
            return socket.create_server(
                (host, candidate), family=family, backlog=backlog, dualstack_ipv6=dual_stack
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE or ports == [port]:
                raise
    subject = f"port {ports[0]} is"
    if len(ports) > 1:
        subject = f"all {len(ports)} ports of {min(ports)}-{max(ports)} are"
    raise EnvironmentFault(
        f"cannot listen on {host or 'this host'}: {subject} taken; --ports (or {PORTS_VARIABLE}) names a "
        "larger range"
    )


def _ports() -> list[int]:
    """Return the ports that may be taken, in any order: several processes look at once."""
    text = os.environ.get(PORTS_VARIABLE, "")
    if not text:
        return [0]
    ports = list(read_ports(text, PORTS_VARIABLE))
    start = os.getpid() * _STRIDE % len(ports)
    return [*ports[start:], *ports[:start]]


def listen_on(host: str, port: int, *, backlog: int, hint: str) -> socket.socket:
    """Listen on a port, which is this socket's alone.

    Args:
        host: name or address, without brackets.
        port: 0 for any that is free.
        backlog: connections that may wait to be accepted.
        hint: what the user can do where it is taken.

    Raises:
        EnvironmentFault: it is taken, in words by whom, or is no port of this host.
    """
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family = found[0][0]
        dual_stack = host == _EVERY_INTERFACE and socket.has_dualstack_ipv6()
        listener = take_port(host, port, family=family, backlog=backlog, dual_stack=dual_stack)
        # Connections inherit it. asyncio sees to it only for sockets that it makes itself.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in _KEEP_ALIVE:
            if hasattr(socket, name):
                listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
        return listener
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        holder = holder_of(port) if error.errno == errno.EADDRINUSE else ""
        holder_note = f" (it is {holder}'s)" if holder else ""
        address = joined_address(host, port)
        raise EnvironmentFault(
            f"cannot listen on {address}: {reason}{holder_note}; {hint}"
        ) from error


def address_towards(master: str) -> str:
    """The address of this host on the network that leads to a master; nothing is sent.

    Raises:
        EnvironmentFault: no network leads there.
    """
    host, port = split_address(master)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, _, _, target = found[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise EnvironmentFault(f"cannot reach the master at {master}: {error}") from error


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of an address.

    >>> split_address("10.0.0.7:4000"), split_address("[::1]:4000")
    (('10.0.0.7', 4000), ('::1', 4000))
    """
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def joined_address(host: str, port: int) -> str:
    """Return the address of a host, without brackets, and a port.

    >>> joined_address("10.0.0.7", 4000), joined_address("::1", 4000)
    ('10.0.0.7:4000', '[::1]:4000')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def family_of(host: str) -> socket.AddressFamily:
    """Return the kind of an address; a name is taken for one of IPv4."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def is_of_one_link(host: str) -> bool:
    """Return whether an address holds on one link alone, by a name that each host has for it.

    >>> is_of_one_link("fe80::1%eth0"), is_of_one_link("fe80::1"), is_of_one_link("fd00::1")
    (True, True, False)
    """
    try:
        found = ip_address(host)
    except ValueError:
        return False
    return found.version == 6 and found.is_link_local


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from its own host alone.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("10.0.0.7")
    (True, True, True, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def own_listeners() -> dict[int, int]:
    """Return the descriptors of the sockets on which this process listens, with their ports."""
    found = {}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # it was closed meanwhile
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as copy:
                    is_inet = copy.family in (socket.AF_INET, socket.AF_INET6)
                    if is_inet and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        found[descriptor] = int(copy.getsockname()[1])
    return found


def stop_listening(descriptor: int) -> None:
    """Have a socket of this process take no calls any more: a thread that waits for one gets an error."""
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.shutdown(socket.SHUT_RDWR)


def is_any_interface(host: str) -> bool:
    """Return whether a host stands for all interfaces, and so is an address of no host.

    >>> is_any_interface("0.0.0.0"), is_any_interface("::"), is_any_interface("10.0.0.7")
    (True, True, False)
    """
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def holder_of(port: int) -> str:
    """Name the process that listens on a TCP port of this host.

    Empty where none does, or the kernel does not tell.

    Processes of other accounts are told by their account alone.
    """
    found = {inode: account for inode, account, _ in _listeners(port)}
    if not found:
        return ""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if found.keys() & _sockets_of(pid):
            return f"process {pid} ({name_of(int(pid))})"
    return f"a process of {_account(next(iter(found.values())))}"


def foreign_listener(host: str, port: int) -> str:
    """Name the other account that takes the calls to a TCP port of this host; empty: none does.

    Root may listen anywhere, and may start its processes as anyone.

    Args:
        host: name or address of this host that is called. Another account may listen on the same
            port of another address.
    """
    if not os.geteuid():
        return ""
    ranks = [(_rank(host, address), account) for _, account, address in _listeners(port)]
    nearest = min((rank for rank, _ in ranks if rank is not None), default=None)
    own = {0, os.geteuid()}
    strangers = [account for rank, account in ranks if rank == nearest and account not in own]
    return _account(strangers[0]) if nearest is not None and strangers else ""


def _rank(host: str, address: IPv4Address | IPv6Address) -> int | None:
    """Return how near to a host's address one is that somebody listens on; None: not of it.

    The kernel gives a call to the nearest, so who listens on all addresses may get none.
    """
    try:
        called = ip_address(host.partition("%")[0])
    except ValueError:  # a name: it may stand for each of them
        return 0
    if address == called:
        return 0
    if not address.is_unspecified or address.version < called.version:
        return None
    return 1 if address.version == called.version else 2


def _listeners(port: int) -> Iterator[tuple[str, int, IPv4Address | IPv6Address]]:
    """Yield inode, account number and address of each socket that listens on the port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in read_proc(table).splitlines()[1:]:
                _, local, _, state, _, _, _, account, _, inode, *_ = line.split()
                host, _, number = local.rpartition(":")
                if state == _LISTENS and int(number, 16) == port:
                    yield f"socket:[{inode}]", int(account), _address_of(host)


def _address_of(words: str) -> IPv4Address | IPv6Address:
    """Read an address of the kernel's tables: words of 4 bytes, each as the processor has it.

    >>> _address_of(socket.inet_aton("127.0.0.1")[:: -1 if sys.byteorder == "little" else 1].hex())
    IPv4Address('127.0.0.1')
    """
    order = -1 if sys.byteorder == "little" else 1
    packed = b"".join(bytes.fromhex(words[k : k + 8])[::order] for k in range(0, len(words), 8))
    found = ip_address(packed)
    return getattr(found, "ipv4_mapped", None) or found


def _sockets_of(pid: str) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):  # it has ended, or is somebody else's
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(entry.path))
    return found


def _account(number: int) -> str:
    try:
        return f"account {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"account {number}"
