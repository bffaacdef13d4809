"""The rights that callers have in a scheduler: a table. Pure.

A token is the administrator's or a tenant's. What belongs to a tenant is for it and the
administrator alone: to all others it does not exist.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


class Right(enum.StrEnum):
    """An action that a caller may take, in words that follow "may not"."""

    SEE_CLUSTER = "see the cluster"
    SEE_JOB = "see this job"
    READ_LOGS = "read what this job prints"
    READ_RECORDS = "read the records of this job"
    USE_TERMINAL = "use the terminal of this job"
    SUBMIT = "submit jobs of this tenant"
    RESIZE = "resize this job"
    HOLD = "suspend or resume this job"
    CANCEL = "cancel this job"
    FORGET = "forget this job"
    APPLY = "describe the cluster"
    END_SCHEDULER = "end the scheduler"
    GIVE_TOKENS = "give or revoke tokens"


class Holder(enum.Enum):
    """The callers with a sufficient token."""

    ANYONE = "anyone with a token"
    OWNER = "the job's tenant"
    ADMINISTRATOR = "the administrator"


RIGHTS: Mapping[Right, Holder] = MappingProxyType(
    {
        Right.SEE_CLUSTER: Holder.ANYONE,
        Right.SEE_JOB: Holder.OWNER,
        Right.READ_LOGS: Holder.OWNER,
        Right.READ_RECORDS: Holder.OWNER,
        Right.USE_TERMINAL: Holder.OWNER,
        Right.SUBMIT: Holder.OWNER,
        Right.RESIZE: Holder.OWNER,
        Right.HOLD: Holder.OWNER,
        Right.CANCEL: Holder.OWNER,
        Right.FORGET: Holder.OWNER,
        Right.APPLY: Holder.ADMINISTRATOR,
        Right.END_SCHEDULER: Holder.ADMINISTRATOR,
        Right.GIVE_TOKENS: Holder.ADMINISTRATOR,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A caller that has shown a token.

    Args:
        tenant: whose token it was; None: the administrator's.
        origin: where the request came from.

    >>> ads = Caller(tenant="ads", origin="10.0.0.3")
    >>> ads.may(Right.CANCEL, of="ads"), ads.may(Right.CANCEL, of="web"), ads.may(Right.APPLY)
    (True, False, False)
    >>> str(ads), str(Caller(tenant=None, origin="127.0.0.1"))
    ('ads from 10.0.0.3', 'the administrator from 127.0.0.1')
    """

    tenant: str | None
    origin: str

    @property
    def name(self) -> str:
        return "the administrator" if self.tenant is None else self.tenant

    def may(self, right: Right, *, of: str | None = None) -> bool:
        """Return whether the caller has this right over the things of tenant `of`.

        None: it belongs to no tenant.
        """
        if self.tenant is None or RIGHTS[right] is Holder.ANYONE:
            return True
        return RIGHTS[right] is Holder.OWNER and self.tenant == of

    def __str__(self) -> str:
        return f"{self.name} from {self.origin}"
