"""YAML files that people write: their content, or its faults with places."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from brim.decoding import UNDECODABLE
from brim.errors import SpecError
from brim.storage.files import nearby

_LARGEST_BYTES = 1 << 20
_MOST_VALUES = 1_000_000  # of a file, with what its aliases stand for each time that they are named


class _NoKeyTwice:
    """YAML's standard forbids it, its readers let it pass.

    Nor are keys merged: a short file can merge without end.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        line = node.start_mark.line + 1
        twice = sorted(key for key, count in counts.items() if count > 1)
        if twice:
            raise yaml.MarkedYAMLError(problem=f"{twice[0]!r} twice in the mapping of line {line}")
        if "<<" in counts:
            raise yaml.MarkedYAMLError(
                problem=f"'<<', which is not supported, in the mapping of line {line}"
            )
        found: dict[Any, Any] = super().construct_mapping(node, deep)  # type: ignore[misc]
        return found


class _Typed(_NoKeyTwice, yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    pass


class _Words(_NoKeyTwice, yaml.BaseLoader):  # type: ignore[misc]
    pass


def read_yaml(path: Path, *, words: bool = False) -> Any:
    """The content of a YAML file.

    Args:
        words: leave every value as it was written: `1:4` is a number of base 60 else.

    Raises:
        SpecError: it cannot be read, is no YAML, or is larger than any file that people write.
    """
    try:
        return _parsed(path, _Words if words else _Typed)
    except FileNotFoundError:
        hint = nearby(path, (".yaml", ".yml"))
        raise SpecError(str(path), got="no such file", need="a YAML file", hint=hint) from None
    except IsADirectoryError:
        raise SpecError(str(path), got="a directory", need="a YAML file") from None
    except OSError as error:
        raise SpecError(
            str(path), got=str(error.strerror), need="a file that can be read"
        ) from None
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or str(error)
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise SpecError(place, got=str(problem), need="valid YAML") from None
    # What yaml itself raises of values that are not what their tags say, and of nesting without
    # end.
    except (LookupError, TypeError, AttributeError, *UNDECODABLE) as error:
        raise SpecError(str(path), got=str(error), need="valid YAML") from None


def _parsed(path: Path, loader: Any) -> Any:
    with path.open("rb") as file:
        content = file.read(_LARGEST_BYTES + 1)
    if len(content) > _LARGEST_BYTES:
        raise SpecError(str(path), got="a larger file", need=f"at most {_LARGEST_BYTES >> 20} MiB")
    found = yaml.load(content, loader)
    if _count(found, {}) > _MOST_VALUES:
        raise SpecError(
            str(path),
            got="aliases that stand for more",
            need=f"at most {_MOST_VALUES:,} values in all",
        )
    return found


def _count(value: Any, sizes: dict[int, int]) -> int:
    """Return how many values a value contains.

    A value that is part of itself has no end.

    Args:
        sizes: the counts of lists and mappings that were counted, by their `id`.
    """
    if not isinstance(value, (list, dict)):
        return 1
    if id(value) not in sizes:
        sizes[id(value)] = _MOST_VALUES + 1  # while it is being counted
        inner = value.values() if isinstance(value, dict) else value
        sizes[id(value)] = 1 + sum(_count(item, sizes) for item in inner)
    return sizes[id(value)]
