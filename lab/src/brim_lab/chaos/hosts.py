"""Hosts made of namespaces, joined by cables that can be cut and delayed.

Each has a network, processes, shared memory and a name of its own, a root for temporary files and
one folder of the disk that is its own; all other files it can only read. So nothing that two
processes of one machine have in common can help two hosts.

A cable is a TUN device, and a process carries packets between them (`switch.py`). A bridge with `tc
netem` would do the same in the kernel, but many kernels have no netem, and a link that is set down
is noticed by both ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from brim.host.process import children_of
from brim.host.procfs import read_proc
from brim_lab.chaos import entrance, switch

DEVICE = "eth0"  # of each host
_TUN = Path("/dev/net/tun")
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02  # packets of up to 64 KiB: a tenth of the work
_MTU = 9000
_ISOLATED_PYTHON = (sys.executable, "-I", "-S")  # starts in 20 ms
CODE = (str(Path(__file__).resolve().parents[4]), sys.prefix)  # the checkout, and its Python
# A function of the shell: `show FD FOLDER` makes a folder readable again where something else was
# mounted over it after it was opened.
SHOW = """
show() {
    test -e "$2" && return
    mkdir -p "$2"
    mount --no-canonicalize --rbind "/proc/self/fd/$1" "$2"
    mount -o remount,bind,ro "$2"
}
"""
# The first process of a host; the host ends with it, and it with its standard input. Its arguments
# are its folder, its name, the lines of its /etc/hosts, two folders that it sees also where its
# temporary files hide them, and, if there is one, a folder that it shares with the others.
_INIT = f"""
set -e
{SHOW}
exec 3<"$4" 4<"$5" 5<"${{6:-$1}}"
cd "$1"
for place in /tmp /var/tmp /dev/shm /run; do
    mount -t tmpfs -o mode=1777 none "$place"
done
mkdir -p "$1"
mount --no-canonicalize --rbind . "$1"
if [ -n "$6" ]; then
    mkdir -p "$6"
    mount --no-canonicalize --rbind /proc/self/fd/5 "$6"
fi
show 3 "$4"
show 4 "$5"
exec 3<&- 4<&- 5<&-
printf '%s' "$3" > /run/hosts
mount --bind /run/hosts /etc/hosts
mount -o remount,bind,ro /
printf '%s' "$2" > /proc/sys/kernel/hostname
trap '' CHLD  # who has lost its parent is not left over as a zombie
echo ready
exec cat > /dev/null
"""


class Cable:
    """The cable of one host."""

    def __init__(self, number: int, carrier: subprocess.Popen[str]) -> None:
        self._number, self._carrier = number, carrier
        self._loses_from = self._loses_to = False
        self._delay = 0.0

    def cut(self, *, to_host: bool = True, from_host: bool = True) -> None:
        """Lose packets of these directions from now on; neither end is told."""
        self._loses_to, self._loses_from = to_host, from_host
        self._tell()

    def delay(self, seconds: float) -> None:
        """Packets of both directions take so long from now on."""
        self._delay = seconds
        self._tell()

    def mend(self) -> None:
        """Lose and delay nothing any more."""
        self._delay = 0.0
        self.cut(to_host=False, from_host=False)

    def _tell(self) -> None:
        assert self._carrier.stdin is not None
        assert self._carrier.stdout is not None
        words = (self._number, self._loses_from, self._loses_to, self._delay)
        print(*words, file=self._carrier.stdin, flush=True)
        self._carrier.stdout.readline()


class Host:
    """A host; a command behind `prefix` runs in it.

    Args:
        number: counts from 1.
        namespace: of its network.
        folder: what it can write that outlives it; its path is the same inside.
        cable: to the others.
        names: the lines of its /etc/hosts.
        shared: a folder that it can write as well, as others can; None: there is none.

    Attributes:
        address: 10.77.0.NUMBER.
        address6: fd77::NUMBER.
    """

    def __init__(
        self,
        number: int,
        namespace: str,
        folder: Path,
        cable: Cable,
        names: str,
        *,
        shared: Path | None = None,
    ) -> None:
        self.number, self.namespace, self.cable = number, namespace, cable
        self.folder = folder.resolve()
        self.address, self.address6 = address_of(number), _address6_of(number)
        self._names = names
        self._shared = "" if shared is None else str(shared.resolve())
        self._outer: subprocess.Popen[str] | None = None
        self._init = 0

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words in front of a command of the host as it is up now."""
        return (*_ISOLATED_PYTHON, str(Path(entrance.__file__)), str(self._init), str(self.folder))

    @property
    def is_up(self) -> bool:
        """Return whether it was started and not killed."""
        return self._outer is not None

    @property
    def root(self) -> Path:
        """The root of its files as seen from outside, its temporary ones among them."""
        return Path(f"/proc/{self._init}/root")

    def start(self) -> None:
        """Boot it, for the first time or after `kill`."""
        (self.folder / "home").mkdir(parents=True, exist_ok=True)
        spaces = ("--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc")
        name = f"host-{self.number}"
        init = ("sh", "-c", _INIT, "sh", str(self.folder), name, self._names, *CODE, self._shared)
        self._outer = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, "unshare", *spaces, *init],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,  # unshare laments there that its child is killed
            text=True,
        )
        assert self._outer.stdout is not None
        if self._outer.stdout.readline() != "ready\n":
            _, errors = self._outer.communicate()
            raise OSError(f"{name} cannot be started in {self.folder}: {errors.strip()}")
        (self._init,) = children_of(self._outer.pid)

    def kill(self) -> None:
        """SIGKILL all its processes at once, and wait until they are gone.

        Its kernel lives: it closes their connections. What it had in memory is lost.
        """
        if self._outer is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._init, signal.SIGKILL)
        self._outer.communicate()
        self._outer, self._init = None, 0

    def contains(self, pid: int) -> bool:
        """Return whether a process, by its id out here, is one of this host."""
        with contextlib.suppress(OSError):  # it has ended, or the host has
            pid_namespace = os.readlink(f"/proc/{self._init}/ns/pid")
            return os.readlink(f"/proc/{pid}/ns/pid") == pid_namespace
        return False

    def processes(self) -> dict[int, str]:
        """List the processes beside the first one, by their ids out here, with their names."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            pid = int(entry.name)
            with contextlib.suppress(OSError):  # it ended while we looked
                if self.contains(pid) and pid != self._init and not _has_ended(entry):
                    found[pid] = read_proc(f"{entry}/comm").strip()
        return found

    def files(self) -> set[str]:
        """List the files that it has kept, by their paths in its folder."""
        return {
            str(path.relative_to(self.folder))
            for path in self.folder.rglob("*")
            if path.is_file() or path.is_symlink()
        }

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        """Have this thread's new sockets be in the host's network."""
        old_namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        host_namespace = os.open(f"/proc/{self._init}/ns/net", os.O_RDONLY)
        try:
            entrance.enter(host_namespace)
            yield
        finally:
            entrance.enter(old_namespace)
            os.close(host_namespace)
            os.close(old_namespace)

    def outer_pid(self, pid: int) -> int:
        """The process id out here of a process that has this one in there; 0 where none has."""
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended while we looked
                if _last_pid(entry) == pid and self.contains(int(entry.name)):
                    return int(entry.name)
        return 0


def address_of(number: int) -> str:
    """The address of a host."""
    return f"10.77.0.{number}"


def _address6_of(number: int) -> str:
    return f"fd77::{number:x}"


def can_make_hosts() -> bool:
    """Return whether this process may make namespaces and devices."""
    tools = all(shutil.which(name) is not None for name in ("ip", "unshare", "mount"))
    return os.geteuid() == 0 and tools and os.access(_TUN, os.R_OK | os.W_OK)


@contextlib.contextmanager
def hosts_in(folder: Path, count: int, *, shared: Path | None = None) -> Iterator[tuple[Host, ...]]:
    """Hosts 1, 2 and so on, 10.77.0.1, 10.77.0.2…, each with a cable to all others.

    Their folders, `host-1` and so on, are left in this one; all else of them is gone at the end.

    Args:
        folder: of their folders.
        count: of hosts.
        shared: a folder that all of them can write, as a disk of the network; None: they share none.

    Raises:
        OSError: this process may not (see `can_make_hosts`).
        subprocess.CalledProcessError: `ip` does not do what it is told.
    """
    tag, numbers = uuid.uuid4().hex[:6], range(1, count + 1)
    names = "127.0.0.1 localhost\n" + "".join(f"{address_of(n)} host-{n}\n" for n in numbers)
    spaces = [f"brim-{tag}-{number}" for number in numbers]
    with contextlib.ExitStack() as undo:
        ends: list[int] = []
        for number, space in zip(numbers, spaces, strict=True):
            _ip("netns", "add", space)
            undo.callback(_ip, "netns", "del", space)
            ends.append(_end(space, number, f"brim{tag}{number}"))
            undo.callback(os.close, ends[-1])
        carrier = undo.enter_context(_carrier(ends))
        hosts = []
        for number, space in zip(numbers, spaces, strict=True):
            place = folder / f"host-{number}"
            cable = Cable(number, carrier)
            hosts.append(Host(number, space, place, cable, names, shared=shared))
            undo.callback(hosts[-1].kill)
            hosts[-1].start()
        yield tuple(hosts)


@contextlib.contextmanager
def _carrier(ends: Sequence[int]) -> Iterator[subprocess.Popen[str]]:
    ports = [
        f"{address_of(number)},{_address6_of(number)}={end}"
        for number, end in enumerate(ends, start=1)
    ]
    process = subprocess.Popen(
        [*_ISOLATED_PYTHON, str(Path(switch.__file__)), *ports],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=ends,
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process
    finally:
        process.communicate()


def _end(namespace: str, number: int, device: str) -> int:
    """Make one end of a cable, and return its file descriptor.

    What the host sends by the device can be read there, and what is written there reaches the host.
    """
    descriptor = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", device.encode(), flags))
    fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    option = ("-n", namespace)
    _ip("link", "set", device, "netns", namespace, "name", DEVICE)
    _ip(*option, "addr", "add", f"{address_of(number)}/24", "dev", DEVICE)
    _ip(*option, "link", "set", DEVICE, "mtu", str(_MTU), "up")
    if Path("/proc/net/if_inet6").exists():
        _ip(*option, "addr", "add", f"{_address6_of(number)}/64", "dev", DEVICE, "nodad")
    _ip(*option, "link", "set", "lo", "up")
    return descriptor


def _last_pid(entry: Path) -> int:
    """The process id of a process in the innermost namespace that it is in."""
    for line in read_proc(f"{entry}/status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return 0


def _has_ended(entry: Path) -> bool:
    return read_proc(f"{entry}/stat").rpartition(")")[2].split()[0] in ("Z", "X")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
