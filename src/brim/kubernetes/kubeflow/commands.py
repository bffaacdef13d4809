"""Options in the command of a container, with the variables that its `env` sets. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# `$(NAME)` is Kubernetes's, the others are of shells.
_VARIABLE = re.compile(r"\$(?:\((\w+)\)|\{(\w+)\}|(\w+))", re.ASCII)
_QUOTES = "\"'"


def command_of(container: Mapping[str, Any]) -> str:
    """Return the words of a command, with each variable that `env` sets.

    >>> env = [{"name": "LEAST", "value": "2"}]
    >>> command_of({"command": ["sh", "-c"], "args": ["run --min $LEAST $OTHER"], "env": env})
    'sh -c run --min 2 $OTHER'
    """
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    values: dict[str, str] = {}
    for variable in container.get("env") or []:
        if isinstance(variable.get("value"), str):
            values[str(variable.get("name"))] = _expanded(variable["value"], values)
    return _expanded(" ".join(map(str, words)), values)


def option_of(command: str, *names: str) -> str | None:
    """Return the last value of an option in a command; None where it has none.

    Args:
        names: of the option, which mean the same.

    >>> option_of("torchrun --nnodes=1:4 a.py", "--nnodes"), option_of('b -np "3"; c', "-np")
    ('1:4', '3')
    """
    named = "|".join(map(re.escape, names))
    found = re.findall(rf"(?:^|[\s{_QUOTES}])(?:{named})[\s=]+(\S+)", command)
    return found[-1].strip(f"{_QUOTES};") if found else None


def _expanded(text: str, values: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: values.get(found[1] or found[2] or found[3], found[0]), text)
