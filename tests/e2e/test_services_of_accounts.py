"""Services of tenants with accounts, and of a scheduler that is not root: other accounts of the host
can neither read nor steer a front, nor take its port.
"""

from __future__ import annotations

import asyncio
import contextlib
import encodings.idna  # noqa: F401 which another account may not be able to read
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from brim.client import Client
from brim.scheduler.front_text import SHOW_SLOTS, slots_in
from brim.wire.cluster import ServiceView
from brim.wire.haproxy import ask_front
from brim.wire.listening import foreign_listener, take_port
from brim_lab.driver import Driver
from e2e.attempts import outcome_of
from e2e.reachable import can_be_reachable, reachable
from e2e.requesting import requests_to
from e2e.running import DEADLINE, FILES, free_port, leftovers, until
from tiers import LONG, NEEDS_HAPROXY

NOBODY, DAEMON = 65534, 1
CLUSTER = """
nodes: [{name: n1, workers: 2}]
tenants:
  - {name: ads, guaranteed: 1, user: nobody}
"""

pytestmark = [
    pytest.mark.e2e,
    NEEDS_HAPROXY,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of others"),
    pytest.mark.skipif(not can_be_reachable(), reason="no namespaces of mounts here"),
]


def become(account: int) -> None:
    os.setgroups([])
    os.setresgid(account, account, account)
    os.setresuid(account, account, account)


def as_account(account: int, work: Callable[[], str]) -> str:
    """Return the outcome of work that another account does, in a process of its own."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become(account)
            outcome = work()
        except BaseException as error:  # noqa: BLE001 the test shows it
            outcome = repr(error)
        os.write(writer, outcome.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        outcome = answers.read()
    os.waitpid(pid, 0)
    return outcome


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nimpostor"


def answer_at(port: int) -> None:
    """Take a port as soon as it is free, and answer there for ever."""
    while True:
        with contextlib.suppress(OSError):
            listener = socket.create_server(("127.0.0.1", port))
            break
    while True:
        line, _ = listener.accept()
        with line, contextlib.suppress(OSError):
            line.recv(1 << 16)
            line.sendall(ANSWER)


@contextlib.contextmanager
def impostor(account: int, port: int) -> Iterator[None]:
    """Have another account take the port of a replica."""
    pid = os.fork()
    if pid == 0:
        try:
            become(account)
            answer_at(port)
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def attempts_at(folder: Path, front: int, port: int) -> str:
    """Try everything at a front that an account of the host could."""

    def call() -> None:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(folder / "front.sock"))

    attempts: dict[str, Callable[[], object]] = {
        "list": lambda: os.listdir(folder),
        "config": lambda: (folder / "front.cfg").read_bytes(),
        "contact": lambda: (folder / "front.json").read_bytes(),
        "log": lambda: (folder / "front.log").read_bytes(),
        "admin socket": call,
        "kill": lambda: os.kill(front, signal.SIGTERM),
        "environment": lambda: Path(f"/proc/{front}/environ").read_bytes(),
        "descriptors": lambda: os.listdir(f"/proc/{front}/fd"),
        "port": lambda: take_port("127.0.0.1", port).close(),
        "port of all": lambda: take_port("0.0.0.0", port).close(),
    }
    return json.dumps({name: outcome_of(attempt) for name, attempt in attempts.items()})


REFUSED = dict.fromkeys(
    (
        "list",
        "config",
        "contact",
        "log",
        "admin socket",
        "kill",
        "environment",
        "descriptors",
    ),
    "refused",
) | {"port": "EADDRINUSE", "port of all": "EADDRINUSE"}


class Home:
    """The state directory of a scheduler that an account starts, with a service."""

    def __init__(self, folder: Path, account: int = 0) -> None:
        self.state = folder / "state"
        self.port = free_port()
        shutil.copy(FILES / "answering.py", folder / "answering.py")
        (folder / "cluster.yaml").write_text(
            CLUSTER.replace("user: nobody", "") if account else CLUSTER
        )
        lines = {
            "name": "web",
            "command": [sys.executable, "answering.py"],
            "port": self.port,
            "replicas": "1",
            "per-replica": 100,
            "health": "/healthz",
        }
        (folder / "service.yaml").write_text(json.dumps(lines))
        driver = Driver(folder, BRIM_HOME=str(self.state), HOME=str(folder))
        change = ("setpriv", f"--reuid={account}", f"--regid={account}", "--clear-groups", "--")
        self.driver = driver.with_prefix((*reachable(), *(change if account else ())))
        for path in (folder, *folder.iterdir()):
            os.chown(path, account, account)

    def brim(self, *words: str) -> str:
        done = self.driver.call(*words, timeout=DEADLINE, codes=())
        assert done.returncode == 0, done.stderr
        return done.stdout

    def serve(self) -> str:
        words = ("--service", "service.yaml", "--tenant", "ads")
        job = self.brim("submit", *words).strip()

        def is_ready() -> bool:
            return self.service(job).ready == 1

        until(is_ready, "a replica")
        return job

    def service(self, job: str) -> ServiceView:
        view = Client(self.state).job(job).service
        assert view is not None
        return view

    def front(self, job: str) -> int:
        contact = json.loads((self.state / "services" / job / "front.json").read_text())
        return int(contact["pid"])

    def ports_in_use(self, job: str) -> set[int]:
        """Return the ports to which the front of a service sends requests."""
        answer = asyncio.run(ask_front(self.state / "services" / job, [SHOW_SLOTS]))
        return {slot.port for slot in slots_in(answer) if slot.state == "ready"}

    def check_doors(self, job: str, account: int) -> None:
        """Check that an account is refused at each of them, and that the front goes on."""
        folder, front = self.state / "services" / job, self.front(job)
        found = as_account(account, lambda: attempts_at(folder, front, self.port))
        assert json.loads(found) == REFUSED
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "front.sock").stat().st_mode & 0o777 == 0o600
        with requests_to(self.port, rate=10.0) as requests:
            until(lambda: requests.answers.total() > 2, "answers")
        assert requests.lost == []
        assert self.front(job) == front

    def replica(self, job: str) -> psutil.Process:
        port = self.service(job).replicas[0].address.rpartition(":")[2]
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if (
                    process.environ().get("PORT") == port
                    and "answering.py" in process.cmdline()[-1]
                ):
                    return process
        raise AssertionError("no process of the replica")


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="brim-services-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_front_of_a_tenant_is_no_other_accounts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.wire.haproxy._TO_ANSWER", 60.0)  # of who asks here
    home = Home(folder)
    home.brim("up", "--cluster", "cluster.yaml")
    try:
        job = home.serve()
        assert home.replica(job).uids().effective == NOBODY
        assert psutil.Process(home.front(job)).username() == "haproxy"
        for account in (DAEMON, NOBODY):  # its own tenant does not steer it either
            home.check_doors(job, account)
        os.kill(home.front(job), signal.SIGKILL)
        ports = as_account(NOBODY, lambda: outcome_of(lambda: take_port("127.0.0.1", home.port)))
        assert ports == "EADDRINUSE", "the scheduler keeps it meanwhile"
        with requests_to(home.port, rate=10.0) as requests:
            assert requests.replicas() == {"w1-1"}, "the next front has it, too"
        (replica,) = home.service(job).replicas
        port = int(replica.address.rpartition(":")[2])
        with impostor(DAEMON, port):
            home.replica(job).kill()
            until(
                lambda: [view.replica for view in home.service(job).replicas] == ["w1-2"],
                "another replica",
            )
            assert home.service(job).replicas[0].address != replica.address
            until(lambda: port not in home.ports_in_use(job), "the front's knowledge of that")
            with requests_to(home.port, rate=20.0) as requests:
                assert requests.replicas() == {"w1-2"}
    finally:
        home.brim("down", "--kill")
        until(lambda: not leftovers(home.state), "the end")


@LONG
def test_front_of_an_ordinary_account_is_its_own(folder: Path) -> None:
    home = Home(folder, DAEMON)
    home.brim("up", "--cluster", "cluster.yaml")
    try:
        job = home.serve()
        assert psutil.Process(home.front(job)).uids().effective == DAEMON
        home.check_doors(job, NOBODY)
        scheduler = json.loads((home.state / "scheduler.json").read_text())["pid"]
        os.kill(scheduler, signal.SIGKILL)
        home.check_doors(job, NOBODY)
        home.brim("up")
        until(lambda: home.service(job).ready == 1, "the next scheduler's look")
        home.check_doors(job, NOBODY)
    finally:
        home.brim("down", "--kill")
        until(lambda: not leftovers(home.state), "the end")


def foreign(account: int, host: str, port: int) -> str:
    return as_account(account, lambda: foreign_listener(host, port))


def test_strangers_at_a_replicas_port_are_named() -> None:
    with take_port("127.0.0.1", free_port()) as listener:
        port = listener.getsockname()[1]
        os.fchown(listener.fileno(), DAEMON, DAEMON)
        assert foreign(NOBODY, "127.0.0.1", port) == "account daemon"
        assert foreign(NOBODY, "localhost", port) == "account daemon"
        assert foreign(DAEMON, "127.0.0.1", port) == ""
        assert foreign_listener("127.0.0.1", port) == "", "root starts processes of others"
    assert foreign(NOBODY, "127.0.0.1", port) == ""


@pytest.mark.parametrize(
    ("stranger", "replica", "name"),
    [
        ("127.0.0.2", None, ""),
        ("127.0.0.2", "127.0.0.1", ""),
        ("0.0.0.0", None, "account daemon"),
        ("::", None, "account daemon"),
        ("::1", None, ""),
        ("::", "127.0.0.1", ""),
        ("127.0.0.1", "::", "account daemon"),
    ],
)
def test_strangers_at_other_addresses_take_no_calls(
    stranger: str, replica: str | None, name: str
) -> None:
    """Any account may listen on the port of a replica, at an address that nobody calls."""
    with contextlib.ExitStack() as listeners:
        port = free_port()  # the kernel would choose one that is free at the first address alone
        for host, account in ((stranger, DAEMON), (replica, NOBODY)):
            if host is None:
                continue
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = listeners.enter_context(socket.socket(family))
            if replica and family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            os.fchown(listener.fileno(), account, account)
            listener.bind((host, port))
            listener.listen()
            port = listener.getsockname()[1]
        assert foreign(NOBODY, "127.0.0.1", port) == name
