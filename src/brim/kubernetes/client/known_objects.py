"""The objects of an API server as a client knows them: lists and events in, changes out. Pure.

An event says how one object is, a list how all are. What happened while nobody watched is the
difference between what was known and the next list: objects that it lacks are gone, and an object
of the same name with another uid is gone as well, and another has come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

from brim.kubernetes.client.resources import ObjectKey

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sighting(Generic[T]):
    """An object as a list or an event has it.

    Args:
        key: its name.
        uid: of this object, which no other of the same name has.
        version: its `resourceVersion`, which each change makes another.
        value: the object; None where it cannot be decoded, and then its earlier value stays.
    """

    key: ObjectKey
    uid: str
    version: str
    value: T | None


@dataclass(frozen=True, slots=True)
class ObjectChange(Generic[T]):
    """The change of one object.

    Args:
        key: its name.
        before: as it was known; None: it is new.
        after: as it is; None: it is gone.
    """

    key: ObjectKey
    before: T | None
    after: T | None


@dataclass(frozen=True, slots=True)
class _ListedObject(Generic[T]):
    uid: str
    version: str
    value: T


class KnownObjects(Generic[T]):
    """The objects of a kind, as the last list and the events since then have them."""

    def __init__(self) -> None:
        self._entries: dict[ObjectKey, _ListedObject[T]] = {}
        self._values: dict[ObjectKey, T] = {}

    @property
    def objects(self) -> Mapping[ObjectKey, T]:
        """The objects by name: a view, which later changes show in."""
        return MappingProxyType(self._values)

    def listed(self, sightings: Iterable[Sighting[T]]) -> list[ObjectChange[T]]:
        """Take in a list of all objects.

        Returns:
            The changes since what was known: first those of objects that are gone, so that a
            caller who counts what they hold never counts too much; then the others, in the order of the list.
        """
        seen = {sighting.key: sighting for sighting in sightings}
        removed = [key for key, entry in self._entries.items() if _is_gone(entry, seen.get(key))]
        changes = [self._forget(key) for key in removed]
        for sighting in seen.values():
            changes += self.seen(sighting)
        return changes

    def seen(self, sighting: Sighting[T]) -> list[ObjectChange[T]]:
        """Take in an object that was added or changed.

        Returns:
            The change; none where this was known; two where the object has taken the name of one
            whose end was not seen.
        """
        key, changes = sighting.key, []
        entry = self._entries.get(key)
        if entry is not None and entry.uid != sighting.uid:
            changes.append(self._forget(key))
            entry = None
        if sighting.value is None or (entry is not None and entry.version == sighting.version):
            return changes
        self._entries[key] = _ListedObject(sighting.uid, sighting.version, sighting.value)
        self._values[key] = sighting.value
        changes.append(ObjectChange(key, entry.value if entry else None, sighting.value))
        return changes

    def deleted(self, key: ObjectKey) -> list[ObjectChange[T]]:
        """Take in the end of an object; one that is not known is no change."""
        return [self._forget(key)] if key in self._entries else []

    def _forget(self, key: ObjectKey) -> ObjectChange[T]:
        del self._values[key]
        return ObjectChange(key, self._entries.pop(key).value, None)


def _is_gone(entry: _ListedObject[T], sighting: Sighting[T] | None) -> bool:
    return sighting is None or sighting.uid != entry.uid
