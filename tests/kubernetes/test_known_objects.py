"""Known objects, against a server whose whole state is known."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from brim.kubernetes.client.known_objects import KnownObjects, ObjectChange, Sighting
from brim.kubernetes.client.resources import ObjectKey

NAMES = "abc"


@dataclass(frozen=True)
class Thing:
    """An object: which one of its name, and how often it was changed."""

    uid: str
    turn: int


@dataclass
class ModelServer:
    """The memory of an API server: its objects, and the events since it last forgot some."""

    things: dict[ObjectKey, tuple[Thing, int]] = field(default_factory=dict)
    events: list[tuple[int, str, Sighting[Thing]]] = field(default_factory=list)
    version: int = 1
    forgotten: int = 1  # events up to this version
    born: int = 0

    def put(self, name: str) -> None:
        key = ObjectKey("default", name)
        self.version += 1
        if key in self.things:
            last, _ = self.things[key]
            thing = Thing(last.uid, last.turn + 1)
            self._happens("MODIFIED", key, thing)
        else:
            self.born += 1
            thing = Thing(f"uid-{self.born}", 0)
            self._happens("ADDED", key, thing)
        self.things[key] = thing, self.version

    def delete(self, name: str) -> None:
        key = ObjectKey("default", name)
        if key in self.things:
            self.version += 1
            self._happens("DELETED", key, self.things.pop(key)[0])

    def forget(self) -> None:
        self.forgotten, self.events = self.version, []

    def listed(self) -> list[Sighting[Thing]]:
        return [
            Sighting(key, thing.uid, str(version), thing)
            for key, (thing, version) in sorted(self.things.items())
        ]

    def _happens(self, kind: str, key: ObjectKey, thing: Thing) -> None:
        sighting = Sighting(key, thing.uid, str(self.version), thing)
        self.events.append((self.version, kind, sighting))


@dataclass
class Watcher:
    """A client as the reflector is one: it lists, follows events, and loses its connection."""

    server: ModelServer
    known: KnownObjects[Thing] = field(default_factory=KnownObjects)
    version: int = 0
    told: list[ObjectChange[Thing]] = field(default_factory=list)

    def follow(self, limit: int) -> None:
        """Take in at most so many events: then the connection breaks."""
        if self.version < self.server.forgotten:  # 410
            self.told += self.known.listed(self.server.listed())
            self.version = self.server.version
            return
        for version, kind, sighting in self.server.events:
            if version > self.version and limit > 0:
                limit -= 1
                self.version = version
                if kind == "DELETED":
                    self.told += self.known.deleted(sighting.key)
                else:
                    self.told += self.known.seen(sighting)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(NAMES)),
        st.tuples(st.just("delete"), st.sampled_from(NAMES)),
        st.tuples(st.just("follow"), st.integers(0, 4)),
        st.tuples(st.just("forget"), st.none()),
    ),
    max_size=40,
)


@given(steps)
def test_known_objects_converge_to_the_server(
    history: list[tuple[str, str | int | None]],
) -> None:
    server = ModelServer()
    watcher = Watcher(server)
    for step, argument in history:
        match step, argument:
            case "put", str():
                server.put(argument)
            case "delete", str():
                server.delete(argument)
            case "follow", int():
                watcher.follow(argument)
            case _:
                server.forget()
    watcher.follow(1_000)

    at_the_end = {key: thing for key, (thing, _) in server.things.items()}
    assert dict(watcher.known.objects) == at_the_end
    assert replayed(watcher.told) == at_the_end
    each_end_is_told_once(watcher.told, {thing.uid for thing in at_the_end.values()})


def replayed(changes: list[ObjectChange[Thing]]) -> dict[ObjectKey, Thing]:
    """The state by changes alone; each must begin where the last one ended."""
    objects: dict[ObjectKey, Thing] = {}
    for change in changes:
        assert change.before == objects.get(change.key)
        assert change.before or change.after
        if change.after is None:
            del objects[change.key]
        else:
            objects[change.key] = change.after
            if change.before is not None:
                assert change.before.uid == change.after.uid
                assert change.before.turn < change.after.turn
    return objects


def each_end_is_told_once(changes: list[ObjectChange[Thing]], alive: set[str]) -> None:
    came = {change.after.uid for change in changes if change.after and not change.before}
    ends = Counter(change.before.uid for change in changes if change.before and not change.after)
    assert ends == Counter(came - alive)


KEY = ObjectKey("default", "a")


def seen(uid: str, version: str, value: str | None = "x") -> Sighting[str]:
    return Sighting(KEY, uid, version, value)


def test_a_remade_object_is_removed_and_added() -> None:
    for observe in (KnownObjects[str].seen, lambda objects, sighting: objects.listed([sighting])):
        known_objects = KnownObjects[str]()
        known_objects.seen(seen("1", "5", "old"))
        changes = observe(known_objects, seen("2", "9", "new"))
        assert changes == [ObjectChange(KEY, "old", None), ObjectChange(KEY, None, "new")]


def test_removals_are_told_before_additions() -> None:
    known_objects = KnownObjects[str]()
    other_key = ObjectKey("default", "b")
    known_objects.seen(seen("1", "5"))
    assert known_objects.listed([Sighting(other_key, "2", "6", "y")]) == [
        ObjectChange(KEY, "x", None),
        ObjectChange(other_key, None, "y"),
    ]


def test_what_is_as_it_was_is_no_change() -> None:
    known_objects = KnownObjects[str]()
    known_objects.listed([seen("1", "5")])
    assert known_objects.listed([seen("1", "5")]) == []
    assert known_objects.seen(seen("1", "5")) == []
    assert known_objects.deleted(ObjectKey("default", "never")) == []


def test_undecodable_objects_keep_their_last_value() -> None:
    known_objects = KnownObjects[str]()
    assert known_objects.seen(seen("1", "5", None)) == []
    assert not known_objects.objects
    known_objects.seen(seen("1", "6", "good"))
    assert known_objects.seen(seen("1", "7", None)) == []
    assert known_objects.listed([seen("1", "7", None)]) == []
    assert known_objects.objects[KEY] == "good"
    # Another of its name is not taken for it.
    assert known_objects.seen(seen("2", "9", None)) == [ObjectChange(KEY, "good", None)]
