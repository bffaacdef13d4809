"""Names of the kinds of jobs that others have defined: entry points say them, and nothing is imported."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from brim.user_code.plugins import KINDS, own_plugins


@functools.cache
def foreign_kinds() -> Mapping[str, str]:
    """Return the kinds by the words that stand behind the names in the ids of their jobs.

    >>> foreign_kinds()["tfjob"]
    'TFJob'
    """
    return {kind.lower(): kind for kind in own_plugins(KINDS)}
