"""The policies by name: brim's own, and the published ones that entry points of brim name.

No other module of the product imports a published policy, so a reader of the scheduler meets one
policy. Entry points of other packages add to `brim simulate` alone (`plugins.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from brim.domain.schedule import Policy
from brim.policies.brim import brim
from brim.user_code.plugins import BASELINES, own_plugins


class _Policies(Mapping[str, Policy]):
    """A mapping that imports a published policy when it is asked for."""

    def __getitem__(self, name: str) -> Policy:
        return brim if name == "brim" else _published(name)

    def __iter__(self) -> Iterator[str]:
        yield "brim"
        yield from own_plugins(BASELINES)

    def __len__(self) -> int:
        return 1 + len(own_plugins(BASELINES))


@functools.cache
def _published(name: str) -> Policy:
    policy: Policy = own_plugins(BASELINES)[name].load()
    return policy


POLICIES: Mapping[str, Policy] = _Policies()
