"""Notifications reach real receivers, at least once; bad and dead receivers delay nothing."""

from __future__ import annotations

import asyncio
import contextlib
import email
import email.policy
import json
import os
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from brim.domain.channels import Channel, Mail, Notification, Occasion, Security, Webhook
from brim.domain.cluster import Cluster, ClusterSpec
from brim.errors import SpecError
from brim.host.clock import VirtualClock
from brim.scheduler import notifying as notifying_module
from brim.scheduler.notifying import Notifying, by_courier
from brim.storage.book import _MOST_NOTIFICATIONS, Book
from brim.storage.database import Database
from brim.wire.authority import Authority
from brim.wire.courier import problem_of
from e2e.running import DIGITS, free_port, until
from e2e.test_scheduler import Home, home
from edges.test_scheduler import TENANTS, Served, ask, served

__all__ = ["home", "served"]


class Receiver(ThreadingHTTPServer):
    """A receiver of webhooks: what it got, and how it answers from now on."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.status, self.silence, self.drips = 204, 0.0, False
        self.got: list[tuple[dict[str, Any], dict[str, str]]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook?to=ops"

    def events(self) -> list[tuple[str, str]]:
        return [(body["job"], body["event"]) for body, _ in self.got]


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/hook?to=ops"
        self.server.got.append((json.loads(body), dict(self.headers.items())))
        with contextlib.suppress(OSError):
            if self.server.drips:
                for _ in range(600):
                    self.wfile.write(b"H")
                    time.sleep(0.1)
            time.sleep(self.server.silence)
            self.send_response(self.server.status)
            self.send_header("Location", self.server.url)
            self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.shutdown()
    receiver.server_close()


def notification(**fields: Any) -> Notification:
    return Notification(
        **{
            "id": "job-1/done/5.000", "event": Occasion.DONE, "at": 5.0, "job": "job-1", "tenant": "ads",
            "detail": "", "deadline": None, "finish": None, "step": 7, "steps": 20, **fields,
        }
    )  # fmt: skip


def hook(receiver: Receiver, **fields: Any) -> Channel:
    return Channel(name="hook", webhook=Webhook(url=receiver.url), **fields)


def sent(channel: Channel, *notifications: Notification) -> list[str]:
    """The answers of a real courier."""

    async def send() -> list[str]:
        return [problem async for problem in by_courier(channel, notifications)]

    return asyncio.run(send())


@pytest.fixture(scope="module", autouse=True)
def _first_courier() -> None:
    """Start one in this thread: a warm process ends with the thread that was first to need it."""
    channel = Channel(name="none", command=("/bin/true",))
    assert sent(channel, notification()) == [""]


# The courier -----------------------------------------------------------------------------------------


def test_a_webhook_gets_json_and_its_token(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "url").write_text(receiver.url)
    webhook = Webhook(url=f"file:{tmp_path}/url", token=f"file:{tmp_path}/token")
    first, second = notification(), notification(job="job-ü", id="job-ü/done/5.000")
    assert sent(Channel(name="hook", webhook=webhook), first, second) == ["", ""]
    (body, headers), (other, _) = receiver.got
    assert body == msgspec.to_builtins(first)
    assert other["job"] == "job-ü"
    assert headers["Authorization"] == "Bearer s3cret"
    assert headers["Content-Type"] == "application/json"
    assert headers["Idempotency-Key"] == "job-1/done/5.000"


@pytest.mark.parametrize("status", [302, 404, 500])
def test_other_answers_are_failures_and_end_the_batch(receiver: Receiver, status: int) -> None:
    receiver.status = status
    assert sent(hook(receiver), notification(), notification()) == [
        f"the receiver answered {status}"
    ]
    assert len(receiver.got) == 1, "no redirection is followed"


def test_slow_receivers_are_given_up(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that never comes to its end is as good as dead, though it sends something all the time."""
    receiver.drips = True
    monkeypatch.setattr(notifying_module, "_TO_SEND", 1.5)
    started = time.monotonic()
    assert sent(hook(receiver), notification()) == ["no end in 2 s"]
    assert time.monotonic() - started < 15.0, "sooner than by the courier's own alarm"


def test_memory_of_a_courier_is_bounded() -> None:
    words = "import resource; from brim.wire import courier; courier._limit_memory(); "
    words += "print(resource.getrlimit(resource.RLIMIT_DATA)[0] <= 1 << 30)"
    ended = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == "True\n", ended.stderr
    assert problem_of(MemoryError()) == "too large an answer"


def test_answers_never_contain_secrets(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    bad, odd = tmp_path / "bad", tmp_path / "odd"
    bad.write_text("https://127.0.0.1:1/hunter2")
    odd.write_text("gopher://hunter2/")
    for webhook, expected in (
        (Webhook(url=f"file:{bad}"), "Connection refused"),
        (Webhook(url=f"file:{odd}"), "url: got something else"),
        (Webhook(url=receiver.url, token=f"file:{secret}"), "No such file or directory"),
    ):
        (problem,) = sent(Channel(name="hook", webhook=webhook), notification())
        assert expected in problem
        assert "hunter2" not in problem
    secret.write_text("hunter2\nmore\n")
    (problem,) = sent(
        Channel(name="x", webhook=Webhook(url=receiver.url, token=f"file:{secret}")), notification()
    )
    assert problem == f"{secret} has no secret of one line"


def test_a_command_gets_json_and_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, out = tmp_path / "page", tmp_path / "out"
    script.write_text(f'#!/bin/sh\n{{ cat; env; echo "args: $*"; }} > {out}\n')
    script.chmod(0o755)
    monkeypatch.setenv("HOOK_URL", "hunter2")
    odd = notification(job="$(touch pwned); -rf-1", detail="`id`")
    assert sent(Channel(name="page", command=(str(script), "--quiet")), odd) == [""]
    first, *rest = out.read_text().splitlines()
    assert json.loads(first) == msgspec.to_builtins(odd)
    assert "args: --quiet" in rest
    assert not [line for line in rest if line.startswith(("HOOK_URL", "BRIM_"))]
    script.write_text("#!/bin/sh\nexit 3\n")
    assert sent(Channel(name="page", command=(str(script),)), odd) == [f"{script} ended with 3"]


class Inbox:
    """What a mail server took."""

    def __init__(self) -> None:
        self.mails: list[Any] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        self.mails.append((envelope.mail_from, envelope.rcpt_tos, message))
        return "250 OK"


class MailServer(Controller):
    """At a port that the system chooses, which aiosmtpd forgets to ask for."""

    def _trigger_server(self) -> None:
        assert isinstance(self.server, asyncio.Server)
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@contextlib.contextmanager
def mail_server(**options: Any) -> Iterator[tuple[Inbox, str]]:
    inbox = Inbox()
    server = MailServer(
        inbox, hostname="127.0.0.1", port=0, server_hostname="mail", ready_timeout=60.0, **options
    )
    server.start()
    try:
        yield inbox, f"localhost:{server.port}"
    finally:
        server.stop()


def mail(server: str, **fields: Any) -> Channel:
    sending = Mail(
        **{
            "receivers": ("ml@b.example", "ops@b.example"), "sender": "brim@b.example", "server": server,
            "security": Security.NONE, **fields,
        }
    )  # fmt: skip
    return Channel(name="mail", mail=sending)


def test_jobs_add_no_headers_to_mails() -> None:
    with mail_server() as (inbox, server):
        odd = notification(
            job="j\r\nBcc: evil@x.example-1", detail="line\r\n.\r\nMAIL FROM:<x@y>\x1b]0;t\x07"
        )
        assert sent(mail(server), notification(detail="all steps"), odd) == ["", ""]
    (sender, receivers, plain), (_, odd_receivers, message) = inbox.mails
    assert (sender, receivers) == ("brim@b.example", ["ml@b.example", "ops@b.example"])
    assert plain["Subject"] == "brim: job-1 done"
    assert plain["Auto-Submitted"] == "auto-generated"
    assert "why: all steps" in plain.get_content()
    assert odd_receivers == receivers
    assert message["Bcc"] is None
    assert message["Subject"] == "brim: j??Bcc: evil@x.example-1 done"
    assert "MAIL FROM" in message.get_content()
    assert "\x1b" not in message.get_content()


def test_mails_have_times_beyond_the_calendar() -> None:
    with mail_server() as (inbox, server):
        odd = notification(event=Occasion.AT_RISK, finish=1e15, deadline=-1e15)
        assert sent(mail(server), odd) == [""], "a job that would end in 30 million years"
    assert "finish: 9999-12-" in inbox.mails[0][2].get_content()


def test_a_mail_goes_encrypted_and_with_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.make("mail")
    certificate = tmp_path / "mail.pem"
    identity = authority.issue("scheduler", addresses=("localhost", "127.0.0.1"))
    certificate.write_bytes(identity.key + identity.certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    asked: list[LoginPassword] = []

    def login(*words: Any) -> AuthResult:
        asked.append(words[-1])
        return AuthResult(success=words[-1].password == b"s3cret", handled=False)

    password = tmp_path / "password"
    password.write_text("s3cret")
    options = {"tls_context": context, "require_starttls": True, "authenticator": login}
    with mail_server(**options) as (inbox, server):
        channel = mail(server, security=Security.STARTTLS, user="brim", password=f"file:{password}")
        (problem,) = sent(channel, notification())
        assert problem.startswith("the certificate is not trusted"), "nothing is sent before"
        assert not asked
        trusted = tmp_path / "authority.crt"
        trusted.write_bytes(authority.certificate)
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        assert sent(channel, notification()) == [""]
        password.write_text("hunter2")
        (problem,) = sent(channel, notification())
        assert problem.startswith("the mail server answered 535")
        assert "hunter2" not in problem
    assert len(inbox.mails) == 1


# The queue -------------------------------------------------------------------------------------------


class Queue:
    """A book with notifications, and senders that answer as told."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock(1000.0)
        self.book = Book(Database(folder / "db"))
        self.channels = [Channel(name=name, command=("/bin/true",)) for name in ("a", "b")]
        self.answers: dict[str, list[str]] = {"a": [], "b": []}
        self.sent: list[tuple[str, str]] = []
        self.notifying = Notifying(
            self.book, channels=lambda: self.channels, clock=self.clock, send=self.send
        )

    def keep(self, channel: str, *jobs: str, tenant: str = "ads") -> None:
        for job in jobs:
            self.book.keep_notification(
                channel, notification(job=job, tenant=tenant, at=self.clock.wall())
            )

    async def send(
        self, channel: Channel, notifications: Sequence[Notification]
    ) -> AsyncGenerator[str, None]:
        for each in notifications:
            answers = self.answers[channel.name]
            problem = answers.pop(0) if answers else ""
            if problem == "hangs":
                await asyncio.sleep(3600.0)
            self.sent.append((channel.name, f"{each.job}{'!' if problem else ''}"))
            yield problem

    def go_on(self, seconds: float = 0.0, rounds: int = 3) -> None:
        """Let time pass, and what can be sent be sent."""

        async def run() -> None:
            for _ in range(rounds):
                self.notifying._pass_on_faults()
                self.notifying._begin()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            for task in self.notifying._tasks.values():
                task.cancel()
            await asyncio.gather(*self.notifying._tasks.values(), return_exceptions=True)
            self.notifying._tasks.clear()

        self.clock.advance(seconds)
        asyncio.run(run())


def test_a_dead_channel_delays_no_other(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.answers["a"] = ["hangs"]
    queue.keep("a", "job-1")
    queue.keep("b", "job-2", "job-3")
    queue.go_on()
    assert queue.sent == [("b", "job-2"), ("b", "job-3")]


def test_failures_are_repeated_later_each_time(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.answers["a"] = ["refused"] * 4
    queue.keep("a", "job-1", "job-2")
    for seconds, expected in (
        (0.0, ["job-1!"]),
        (0.9, []),
        (0.2, ["job-2!"]),  # the one that failed less goes first
        (1.8, []),
        (0.3, ["job-1!"]),
        (4.1, ["job-2!"]),
        (8.1, ["job-1", "job-2"]),
    ):
        queue.sent.clear()
        queue.go_on(seconds)
        assert [job for _, job in queue.sent] == expected
    queue.sent.clear()
    queue.go_on(400.0)
    assert queue.sent == []
    outcomes = queue.notifying.outcomes
    assert (outcomes["a", "sent"], outcomes["a", "failed"]) == (2, 4)


def test_day_old_notifications_are_dropped(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.answers["a"] = ["refused"] * 1000
    queue.keep("a", "job-1")
    queue.go_on()
    queue.go_on(24 * 3600.0 + 1.0)
    assert queue.notifying.outcomes["a", "given up"] == 1
    assert queue.book.waiting["a"] == 0
    queue.sent.clear()
    queue.go_on(1000.0)
    assert queue.sent == []


def test_a_tenant_fills_only_its_own_room(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.keep("a", "job-1", tenant="web")
    queue.keep("a", *(f"job-{k}" for k in range(2, _MOST_NOTIFICATIONS + 12)), tenant="ads")
    waiting = queue.book.notifications("a", 10_000).values()
    assert [each.job for each in waiting][:2] == ["job-1", "job-12"], "the oldest made way"
    assert len(waiting) == _MOST_NOTIFICATIONS + 1


def test_damaged_notifications_keep_no_others_waiting(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    for content in (b"{}", b"\xff", b'{"event":"of a later version"}'):
        queue.book._database.add_notification((1000.0, "a", "ads", "job-1", content), 10)
    queue.keep("a", "job-2")
    queue.go_on()
    assert queue.sent == [("a", "job-2")]


def test_the_next_scheduler_sends_what_waits(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.keep("a", "job-1")
    queue.keep("gone", "job-2")
    queue = Queue(tmp_path)
    queue.go_on()
    assert queue.sent == [("a", "job-1")]
    queue = Queue(tmp_path)
    assert +queue.book.waiting == {}, "nothing waits for a channel that is no more"


# The scheduler -----------------------------------------------------------------------------------


def test_a_hanging_receiver_delays_no_cycle(served: Served, receiver: Receiver) -> None:
    receiver.silence = 30.0
    channel = hook(receiver, events=(Occasion.DONE,))
    served.client.apply(
        ClusterSpec(cluster=Cluster.parse("1x8"), tenants=TENANTS, channels=(channel,))
    )
    served.client.submit(ask("1"))
    until(lambda: served.client.job("job-1").workers == 1, "its worker")
    served.processes.end("job-1", "done", summary={"exit": "done"})
    until(lambda: receiver.events() == [("job-1", "done")], "the notification")
    started = time.monotonic()
    served.client.submit(ask("2"))
    until(lambda: served.client.job("job-2").workers == 2, "another job")
    assert time.monotonic() - started < 20.0, "sooner than the receiver is given up"
    view = served.client.cluster()
    assert "hook" not in msgspec.json.encode(view).decode()


def test_channels_without_their_files_are_refused(served: Served, tmp_path: Path) -> None:
    missing, plain = tmp_path / "missing", tmp_path / "plain"
    plain.write_text("no program")
    for fields, problem in (
        ({"webhook": Webhook(url=f"file:{missing}")}, "webhook: url: got file:"),
        ({"webhook": Webhook(url="https://h/", token=f"file:{missing}")}, "webhook: token"),
        ({"command": (str(missing),)}, "command: got"),
        ({"command": (str(plain),)}, "command: got"),
    ):
        channel = Channel(name="x", **fields)
        spec = ClusterSpec(cluster=Cluster.parse("1x8"), tenants=TENANTS, channels=(channel,))
        with pytest.raises(SpecError, match=problem):
            served.client.apply(spec)


def test_a_tenant_names_only_channels_of_the_cluster(served: Served, receiver: Receiver) -> None:
    from brim.domain.channels import Subscription

    channel = hook(receiver, tenants=("web",))
    served.client.apply(
        ClusterSpec(cluster=Cluster.parse("1x8"), tenants=TENANTS, channels=(channel,))
    )
    for name in ("hook", "http://169.254.169.254/latest"):
        with pytest.raises(SpecError, match="--notify"):
            served.client.submit(ask("1", notify=(Subscription(channel=name),)))
    wish = (Subscription(channel="hook", occasions=(Occasion.DONE,)),)
    job = served.client.submit(ask("1", tenant="web", notify=wish)).job
    until(lambda: served.client.job(job).workers == 1, "its worker")
    served.processes.end(job, "done", summary={"exit": "done"})
    until(lambda: receiver.events() == [(job, "done")], "the notification")


@pytest.mark.e2e
def test_killed_schedulers_lose_no_notification(home: Home) -> None:
    """A real scheduler is killed while the receiver is down; the next one delivers."""
    receiver = Receiver(port := free_port())  # which is its next one's, too
    receiver.status = 503
    text = home.file.read_text()
    home.file.write_text(
        f"{text}notify:\n  - {{name: hook, webhook: {{url: '{receiver.url}'}}, events: [failed]}}\n"
    )
    home.brim("apply", str(home.file))
    bad = home.file.with_name("bad.py")
    bad.write_text(Path(DIGITS).read_text() + "\n\ndef model():\n    raise ValueError('no')\n")
    job = home.brim("submit", str(bad), "--tenant", "ads").strip()
    home.brim("status", job, "--wait", code=1)
    until(lambda: receiver.events()[:1] == [(job, "failed")], "the first attempt")
    receiver.shutdown()
    receiver.server_close()
    home.kill_scheduler()
    receiver = Receiver(port)
    home.brim("up")
    until(lambda: (job, "failed") in receiver.events(), "the notification")
    (state_file,) = home.state.glob("scheduler.db")
    assert stat.S_IMODE(state_file.stat().st_mode) & 0o077 == 0 or os.geteuid() == 0
    receiver.shutdown()
    receiver.server_close()


def test_the_courier_dies_by_itself(tmp_path: Path) -> None:
    """One whose scheduler was killed does not wait for ever for a receiver that never ends."""
    receiver = Receiver()
    receiver.drips = True
    code = "import brim.wire.courier as courier; courier.LONGEST_SENDING = 1; courier.main()"
    lines = [msgspec.json.encode(each) + b"\n" for each in (hook(receiver), notification())]
    done = subprocess.run(
        [sys.executable, "-c", code], input=b"".join(lines), capture_output=True, timeout=300.0,
        check=False,
    )  # fmt: skip
    assert done.returncode < 0
    assert done.stdout == b""
    receiver.shutdown()
    receiver.server_close()
