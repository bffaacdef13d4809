"""The policies by name: brim's own, and the published ones that entry points of brim name.

No other module of the product imports a published policy, so a reader of the scheduler meets one
policy. Entry points of other packages add to `brim simulate` alone (`plugins.py`).
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Mapping

from brim.domain.schedule import Policy
from brim.errors import SpecError
from brim.host.installation import command_for
from brim.policies.brim import brim
from brim.user_code.plugins import BASELINES, own_plugins

_SOLVER = "highspy"
_SOLVED = frozenset({"chronus", "lyra", "sia"})  # by programmes


class _Policies(Mapping[str, Policy]):
    """A mapping that imports a published policy when it is asked for."""

    def __getitem__(self, name: str) -> Policy:
        """Raises SpecError where the policy needs a package that is not installed."""
        if name in _SOLVED and importlib.util.find_spec(_SOLVER) is None:
            need, hint = "the extra 'simulate'", command_for("simulate")
            raise SpecError(f"policy {name}", got=f"no package {_SOLVER}", need=need, hint=hint)
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
