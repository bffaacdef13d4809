"""Channels on which people are notified of jobs, and what is sent on them. Pure values.

An administrator describes channels in `cluster.yaml`; jobs can only name them. So no tenant has the
scheduler call an address, or run a command, of the tenant's choice.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from brim.errors import SpecError, did_you_mean

MOST_SUBSCRIPTIONS = 20  # of a job
_MOST_RECEIVERS = 50  # of a mail
_MOST_CHARACTERS = 2_000  # of an address or a word
_FILE = "file:"
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,190}", re.ASCII)
# A name by its labels, as Python's resolver takes it, or an address of IPv6.
_HOST = (
    r"(?:(?=[^:/?]{1,253}(?:[:/?]|$))[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?"
    r"|\[[0-9A-Fa-f:.]{2,45}\])"
)
_SERVER = re.compile(rf"{_HOST}:(\d{{1,5}})", re.ASCII)
_URL = re.compile(rf"https?://{_HOST}(?::(\d{{1,5}}))?(?:[/?][!-~]*)?", re.ASCII)
_PASSWORD_IN_URL = re.compile(r"https?://[^/?]*@")

Text = Annotated[str, msgspec.Meta(max_length=_MOST_CHARACTERS)]


class Occasion(enum.StrEnum):
    """An event of a job of which people can be notified."""

    PROMISED = "promised"  # its deadline is
    AT_RISK = "at-risk"  # it is expected to miss its promised deadline
    DONE = "done"
    FAILED = "failed"
    PREEMPTED = "preempted"  # all its workers were taken


class Security(enum.StrEnum):
    """The encryption of a connection to a mail server."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


class Webhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A POST of JSON.

    Args:
        url: https or http; or the file that has it, see `path_of`.
        token: the file with a token that is sent as `Authorization: Bearer`; empty: none is.
    """

    url: Text
    token: Text = ""


class Mail(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"sender": "from", "receivers": "to"},
):
    """A mail by SMTP.

    Args:
        server: `HOST:PORT`.
        user: empty: it does not log in.
        password: the file with the password, see `path_of`.
    """

    receivers: Annotated[tuple[Text, ...], msgspec.Meta(max_length=_MOST_RECEIVERS)]
    sender: Text
    server: Text
    security: Security = Security.STARTTLS
    user: Text = ""
    password: Text = ""


class Channel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One receiver: a webhook, a mail, or a command of the scheduler's host.

    Args:
        name: by which jobs name it.
        events: of which it is notified for every job; jobs that name it add theirs.
        tenants: whose jobs it is for; empty: all.
        command: a program and its arguments, which gets the JSON on its standard input.

    Raises:
        SpecError: it is none of these, or more than one, or something of it is wrong.
    """

    name: Text
    events: tuple[Occasion, ...] = ()
    tenants: tuple[str, ...] = ()
    webhook: Webhook | None = None
    mail: Mail | None = None
    command: tuple[Text, ...] = ()

    def __post_init__(self) -> None:
        field = f"notify {self.name}"
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", self.name, re.ASCII):
            need = "letters, digits, '-', '_' and '.', 63 at most"
            raise SpecError("notify: name", got=repr(self.name[:40]), need=need, hint="oncall")
        kinds = [kind for kind in (self.webhook, self.mail, self.command) if kind]
        if len(kinds) != 1:
            need = "one of webhook:, mail: and command:"
            raise SpecError(field, got=f"{len(kinds)} of them", need=need)
        if self.webhook is not None:
            _check_webhook(self.webhook, field)
        elif self.mail is not None:
            _check_mail(self.mail, field)
        elif not self.command[0].startswith("/") or any("\0" in word for word in self.command):
            need = "a list of words, of which the first is the absolute path of a program"
            raise SpecError(f"{field}: command", got=repr(self.command[0][:40]), need=need)

    @property
    def secrets(self) -> dict[str, str]:
        """The files that its secrets are in, by their fields."""
        texts = {}
        if self.webhook is not None:
            texts = {"webhook: url": self.webhook.url, "webhook: token": self.webhook.token}
        elif self.mail is not None:
            texts = {"mail: password": self.mail.password}
        return {name: path for name, text in texts.items() if (path := path_of(text))}

    def serves(self, tenant: str) -> bool:
        """Return whether it is for jobs of a tenant."""
        return not self.tenants or tenant in self.tenants


def path_of(text: str) -> str:
    """Return the path of the file that a text refers to: `file:/PATH`; empty: it refers to none.

    The scheduler has no variables but those that its jobs may have, so no variable has a secret.

    >>> path_of("file:/etc/brim/hook"), path_of("secret"), path_of("file:hook")
    ('/etc/brim/hook', '', '')
    """
    is_path = text.startswith(f"{_FILE}/") and "\0" not in text
    return text.removeprefix(_FILE) if is_path else ""


def _check_secret(text: str, field: str) -> None:
    if text and not path_of(text):  # the text may be the secret itself: it is not shown
        need = "the file with the secret: file:/PATH"
        raise SpecError(field, got="something else", need=need, hint="file:/etc/brim/secret")


def check_url(url: str, field: str) -> None:
    """Raises SpecError where this is no URL of a webhook, or has a password."""
    if _PASSWORD_IN_URL.match(url):
        need = "a URL without user and password"
        hint = "token: file:/PATH is sent as Authorization: Bearer"
        raise SpecError(field, got="one with them", need=need, hint=hint)
    found = _URL.fullmatch(url)
    if found is None or not 0 < int(found[1] or 1) < 1 << 16:  # it may be a secret: it is not shown
        need = "an https or http URL, or the file that has it: file:/PATH"
        raise SpecError(field, got="something else", need=need)


def _check_webhook(webhook: Webhook, field: str) -> None:
    if not path_of(webhook.url):
        check_url(webhook.url, f"{field}: webhook: url")
    _check_secret(webhook.token, f"{field}: webhook: token")


def _check_mail(mail: Mail, field: str) -> None:
    for address in (*mail.receivers, mail.sender):
        if not _ADDRESS.fullmatch(address):
            need = "addresses such as ml@example.com"
            raise SpecError(f"{field}: mail", got=repr(address[:80]), need=need)
    if not mail.receivers:
        raise SpecError(f"{field}: mail: to", got="no address", need="one or more")
    server = _SERVER.fullmatch(mail.server)
    if server is None or not 0 < int(server[1]) < 1 << 16:
        raise SpecError(
            f"{field}: mail: server", got=repr(mail.server[:80]), need="HOST:PORT",
            hint="smtp.example.com:587",
        )  # fmt: skip
    if bool(mail.user) != bool(mail.password):
        need = "user and password, or neither"
        raise SpecError(f"{field}: mail", got="one of them", need=need)
    _check_secret(mail.password, f"{field}: mail: password")
    if mail.password and mail.security is Security.NONE:
        need = "starttls or tls, since others could read the password"
        raise SpecError(f"{field}: mail: security", got="none", need=need)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A job's wish to be reported on a channel.

    Args:
        channel: its name.
        occasions: empty: all.
    """

    channel: str
    occasions: tuple[Occasion, ...] = ()


def parse_subscription(text: str) -> Subscription:
    """Read `CHANNEL` or `CHANNEL:EVENT,EVENT`.

    Raises:
        SpecError: neither.

    >>> parse_subscription("oncall:done,failed").occasions
    (<Occasion.DONE: 'done'>, <Occasion.FAILED: 'failed'>)
    """
    channel, colon, words = text.partition(":")
    found = [word.strip() for word in words.split(",")] if colon else []
    odd = [word for word in found if word not in list(Occasion)]
    if not channel or odd or len(set(found)) < len(found):
        raise SpecError(
            "--notify",
            got=repr(text),
            need=f"CHANNEL, or CHANNEL:EVENT,EVENT with events of {', '.join(Occasion)}",
            hint=did_you_mean(odd[0], list(Occasion)) if odd else "--notify oncall:done,failed",
        )
    return Subscription(channel=channel, occasions=tuple(map(Occasion, found)))


def check_subscriptions(
    subscriptions: Sequence[Subscription], channels: Sequence[Channel], *, tenant: str
) -> None:
    """Raises SpecError where a job names a channel that is not there for its tenant."""
    if len(subscriptions) > MOST_SUBSCRIPTIONS:
        actual = f"{len(subscriptions):,} channels"
        raise SpecError("--notify", got=actual, need=f"at most {MOST_SUBSCRIPTIONS}")
    names = [channel.name for channel in channels if channel.serves(tenant)]
    for subscription in subscriptions:
        if subscription.channel not in names:
            need = "a channel of this cluster" if names else "none: cluster.yaml has no notify:"
            hint = did_you_mean(subscription.channel, names) if names else ""
            raise SpecError("--notify", got=repr(subscription.channel[:80]), need=need, hint=hint)


def channels_for(
    channels: Iterable[Channel],
    subscriptions: Sequence[Subscription],
    *,
    tenant: str,
    occasion: Occasion,
) -> list[str]:
    """List the channels on which a job of a tenant is reported, each once."""
    named = {
        subscription.channel
        for subscription in subscriptions
        if not subscription.occasions or occasion in subscription.occasions
    }
    return [
        channel.name
        for channel in channels
        if channel.serves(tenant) and (occasion in channel.events or channel.name in named)
    ]


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """The content that a receiver gets, as JSON; times are seconds since 1970.

    The names are a public contract.

    Args:
        id: the same each time that it is sent: a receiver may get it twice.
        detail: the reason, in words; it may have been written by the job.
        deadline: None where the job has none.
        finish: the end of the job, or the expected one; None where nobody knows.
        step, steps: done, and in all; None where unknown.
    """

    id: str
    event: Occasion
    at: float
    job: str
    tenant: str
    detail: str
    deadline: float | None
    finish: float | None
    step: int
    steps: int | None
