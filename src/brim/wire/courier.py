"""`python -m brim.wire.courier`: sends notifications on one channel; its standard input has both.

A process of its own can be killed: however slow or dead a receiver is, no cycle of the scheduler
waits for it. Each line of standard input is JSON: first the channel, then notifications. Each line of
standard output answers one of them by a JSON string: its problem, or nothing. The process ends with the
first problem.

Secrets are read here, and nowhere else: no answer and no log has them.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import resource
import signal
import smtplib
import ssl
import subprocess
import sys
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

import brim
from brim.domain.channels import (
    Channel,
    Mail,
    Notification,
    Security,
    Webhook,
    check_url,
    path_of,
)
from brim.domain.printable import printable
from brim.errors import BrimError, EnvironmentFault
from brim.host.clock import utc_time
from brim.host.process import be_called

LONGEST_SENDING = (
    20  # seconds for one notification, whatever the receiver does: then this process dies
)
_TO_ANSWER = 10.0  # seconds that a receiver may be silent
_LARGEST_SECRET = 64 << 10  # bytes
_LARGEST_ANSWER = 64 << 10  # bytes that are read, so that the connection ends in order
_WORDS = 200  # characters of an error
_MOST_MEMORY = 1 << 30  # bytes: libraries keep whatever a mail server says
_COMMAND_VARIABLES = ("PATH", "HOME", "LANG", "TZ", "USER", "LOGNAME")


def send(channel: Channel, notification: Notification) -> None:
    """Send one notification.

    Raises:
        EnvironmentFault, OSError, SMTPException, HTTPException: it was not taken, or nobody knows.
    """
    if channel.webhook is not None:
        _post(channel.webhook, notification)
    elif channel.mail is not None:
        _mail(channel.mail, notification)
    else:
        _run(channel.command, notification)


def _secret(text: str) -> str:
    """Return a text, or the secret in the file that it refers to.

    Raises:
        EnvironmentFault: there is no such secret.
    """
    path = path_of(text)
    if not path:
        return text
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST_SECRET)
    except OSError as error:
        raise EnvironmentFault(f"{path}: {error.strerror}") from None
    try:
        secret = content.decode().strip()
    except UnicodeDecodeError:
        secret = ""
    if not secret or not secret.isprintable():
        raise EnvironmentFault(f"{path} has no secret of one line")
    return secret


def _post(webhook: Webhook, notification: Notification) -> None:
    url = _secret(webhook.url)
    check_url(url, "url")
    token = _secret(webhook.token)
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    connection = (
        http.client.HTTPSConnection(
            host, port, timeout=_TO_ANSWER, context=ssl.create_default_context()
        )
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=_TO_ANSWER)
    )
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"brim/{brim.__version__}",
        "Idempotency-Key": notification.id.encode("ascii", "backslashreplace").decode(),
        "Connection": "close",
    }
    if token:
        headers["Authorization"] = f"Bearer {token}"
    path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    try:
        connection.request("POST", path, msgspec.json.encode(notification), headers)
        answer = connection.getresponse()
        answer.read(_LARGEST_ANSWER)
    finally:
        connection.close()
    if not 200 <= answer.status < 300:  # redirections too: the body would go astray
        raise EnvironmentFault(f"the receiver answered {answer.status}")


def mail_of(mail: Mail, notification: Notification) -> EmailMessage:
    """Return the mail for a notification.

    No text of a job gets into a header but its id, without control characters; header values
    with line breaks are refused by the package `email` itself.
    """
    message = EmailMessage(policy=SMTP)
    job = "".join(letter if letter.isprintable() else "?" for letter in notification.job)
    message["Subject"] = f"brim: {job} {notification.event.value}"
    message["From"] = mail.sender
    message["To"] = ", ".join(mail.receivers)
    message["Date"] = format_datetime(utc_time(notification.at))
    digest = hashlib.sha256(notification.id.encode()).hexdigest()[:32]
    message["Message-ID"] = f"<{digest}@{mail.sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"  # so that no machine answers
    message.set_content(_text(notification))
    return message


def _text(notification: Notification) -> str:
    def time(moment: float | None) -> str:
        return "" if moment is None else f"{utc_time(moment):%Y-%m-%d %H:%M:%S} UTC"

    steps = f"{notification.step:,}" + (f" of {notification.steps:,}" if notification.steps else "")
    lines = {
        "job": notification.job,
        "tenant": notification.tenant,
        "event": notification.event.value,
        "time": time(notification.at),
        "why": notification.detail,
        "steps": steps,
        "deadline": time(notification.deadline),
        "finish": time(notification.finish),
    }
    return "".join(f"{name}: {printable(text)}\n" for name, text in lines.items() if text)


def _mail(mail: Mail, notification: Notification) -> None:
    password = _secret(mail.password)
    host, _, port = mail.server.rpartition(":")
    host, name = host.strip("[]"), os.uname().nodename
    is_tls = mail.security is Security.TLS
    context = ssl.create_default_context()
    server = (
        smtplib.SMTP_SSL(host, int(port), name, timeout=_TO_ANSWER, context=context)
        if is_tls
        else smtplib.SMTP(host, int(port), name, timeout=_TO_ANSWER)
    )
    with server:
        if mail.security is Security.STARTTLS:
            server.starttls(context=context)
        if password:
            server.login(mail.user, password)
        refused = server.send_message(mail_of(mail, notification), mail.sender, mail.receivers)
    if refused:  # others have got it, and would get it again
        sys.stderr.write(
            f"a mail was refused for {len(refused)} of {len(mail.receivers)} receivers\n"
        )


def _run(command: tuple[str, ...], notification: Notification) -> None:
    """Run a command: without a shell, and without a word of a job among its arguments."""
    variables = {name: os.environ[name] for name in _COMMAND_VARIABLES if name in os.environ}
    try:
        done = subprocess.run(
            command,
            input=msgspec.json.encode(notification) + b"\n",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=variables,
            cwd="/",
            timeout=_TO_ANSWER,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(f"{command[0]} did not end in {_TO_ANSWER:.0f} s") from None
    if done.returncode:
        raise EnvironmentFault(f"{command[0]} ended with {done.returncode}")


def problem_of(error: Exception) -> str:
    """Describe an error without any secret.

    A server's words are shown; those of libraries about their arguments are not.
    """
    match error:
        case smtplib.SMTPResponseException(smtp_code=code, smtp_error=words):
            text = words.decode("ascii", "replace") if isinstance(words, bytes) else str(words)
            found = f"the mail server answered {code}: {text}"
        case smtplib.SMTPRecipientsRefused():
            found = "the mail server refused all receivers"
        case smtplib.SMTPNotSupportedError():
            found = "the mail server does not offer what security: or user: ask for"
        case ssl.SSLCertVerificationError(verify_message=words):
            found = f"the certificate is not trusted: {words}"
        case TimeoutError():
            found = f"no answer in {_TO_ANSWER:.0f} s"
        case MemoryError():  # where there is some left to say so
            found = "too large an answer"
        case OSError(strerror=str() as words):
            found = words
        case BrimError():
            found = str(error)
        case _:
            found = type(error).__name__
    return printable(" ".join(found.split()))[:_WORDS]


def _limit_memory() -> None:
    hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard_limit == resource.RLIM_INFINITY or hard_limit > _MOST_MEMORY:
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, hard_limit))


def main() -> None:
    """Send until all is sent, or one fails."""
    be_called("brim-courier")
    os.nice(10)  # the scheduler and its jobs come first
    lines = sys.stdin.buffer.read().splitlines()
    channel = msgspec.json.decode(lines[0], type=Channel)
    if not channel.command:  # a program has what memory it needs
        _limit_memory()
    for line in lines[1:]:
        signal.alarm(LONGEST_SENDING)  # ends this process, whoever keeps it waiting
        problem = ""
        try:
            send(channel, msgspec.json.decode(line, type=Notification))
        except Exception as error:  # noqa: BLE001 whatever a receiver makes a library raise
            problem = problem_of(error) or type(error).__name__
        sys.stdout.write(msgspec.json.encode(problem).decode() + "\n")
        sys.stdout.flush()
        if problem:
            return


if __name__ == "__main__":
    main()
