"""Errors of calls to an API server, by the server's answer.

```
EnvironmentFault
├── NoAnswer              no answer in time, or a broken connection (retryable)
└── Refusal               the server's Status
    ├── Unauthorized      401: it does not know the caller
    ├── Forbidden         403: the caller may not do this
    ├── NotFound          404
    ├── Conflict          409: the object has changed, or another manager owns a field
    │   └── AlreadyExists 409 of a create
    ├── Gone              410: the version is compacted; list again
    ├── Invalid           422: the object breaks its schema, or 400: the request makes no sense
    ├── TooManyRequests   429, after all tries (retryable)
    └── ServerFailed      5xx (retryable)
```
"""

from __future__ import annotations

import msgspec

from brim.decoding import UNDECODABLE
from brim.errors import EnvironmentFault

_MAX_BODY_CHARACTERS = 2000  # characters of what is shown of a body that is no Status


class StatusCause(msgspec.Struct, frozen=True, rename="camel"):
    """One reason of several, of one field.

    Args:
        reason: such as `FieldValueInvalid`.
        message: for people.
        field: the path of the field, such as `spec.workers.min`.
    """

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """The details of a Status.

    Args:
        name: of the object.
        causes: field by field.
        retry_after_seconds: after which it may be asked again; 0: not said.
    """

    name: str = ""
    causes: tuple[StatusCause, ...] | None = ()
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """The object that an API server answers with where it refuses a request.

    Args:
        code: of HTTP.
        reason: one word for machines, such as `NotFound`.
        message: for people.
    """

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class NoAnswer(EnvironmentFault):
    """The API server did not answer: the effect of the request is not known."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message, retryable=retryable)


class Refusal(EnvironmentFault):
    """The API server said no.

    Args:
        called: the request, such as `GET /api/v1/pods`.
        status: by the server.

    Attributes:
        code: of HTTP.
        reason: the server's word for it, such as `NotFound`; may be empty.
        causes: field by field, where it has them.
    """

    def __init__(self, called: str, status: Status) -> None:
        self.called, self.status = called, status
        self.code, self.reason = status.code, status.reason
        self.causes = (status.details.causes if status.details else None) or ()
        message = status.message or status.reason or "no reason is given"
        super().__init__(
            f"{called}: {message} (HTTP {status.code})",
            retryable=isinstance(self, TooManyRequests | ServerFailed),
        )


class Unauthorized(Refusal):
    """The API server does not know the caller: its token or certificate is wrong or expired."""


class Forbidden(Refusal):
    """The caller may not do this: a role lacks the verb, or an admission plugin said no."""


class NotFound(Refusal):
    """The object, or its kind, does not exist."""


class Conflict(Refusal):
    """The object has changed since it was read, or another manager owns a field."""


class AlreadyExists(Conflict):
    """An object of that name exists."""


class VersionGone(Refusal):
    """The version that was asked for is not kept any more."""


class Invalid(Refusal):
    """The object or the request makes no sense to the server."""


class TooManyRequests(Refusal):
    """The API server has too much to do."""


class ServerFailed(Refusal):
    """The API server failed, or something that it needs."""


_BY_CODE: dict[int, type[Refusal]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: VersionGone,
    422: Invalid,
    429: TooManyRequests,
}


def refusal(called: str, code: int, body: bytes) -> Refusal:
    """Return the error that an answer is.

    Args:
        called: the request, such as `GET /api/v1/pods`.
        code: of HTTP.
        body: a Status, or the text of a proxy on the way.

    >>> refusal("GET /api/v1/pods/x", 404, b'{"reason": "NotFound", "message": "no pod x"}')
    NotFound('GET /api/v1/pods/x: no pod x (HTTP 404)')
    """
    try:
        status = msgspec.json.decode(body, type=Status)
    except UNDECODABLE:
        status = Status(message=body[:_MAX_BODY_CHARACTERS].decode(errors="replace").strip())
    return refusal_of(called, msgspec.structs.replace(status, code=code))


def refusal_of(called: str, status: Status) -> Refusal:
    """Return the error that a Status is, by its code and reason."""
    if status.code == 409 and status.reason == "AlreadyExists":
        return AlreadyExists(called, status)
    kind = _BY_CODE.get(status.code, ServerFailed if status.code >= 500 else Refusal)
    return kind(called, status)
