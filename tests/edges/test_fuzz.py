"""Bytes from anywhere: a decoder gives a value or one of our errors; it does not crash, and it does
not hang.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import recorded_run
from brim.coordination.job.membership import Member, World
from brim.domain.faults import parse_faults
from brim.domain.quantities import parse_duration
from brim.errors import BrimError
from brim.host.clock import VirtualClock
from brim.master import entries
from brim.master.state import State, freeze, thaw
from brim.storage.checkpoints import Checkpoint, Store
from brim.storage.contact import CONTACT, Contact, read_contact, write_contact
from brim.storage.file_stores import Directory
from brim.storage.job_file import JOB_FILE, read_job, write_job
from brim.storage.journal import Journal, read_frames
from brim.telemetry.record_files import EVENTS, follow_events
from brim.train.state.checkpoint import Image, state_of
from brim.wire import messages as wire
from brim.wire.frames import FrameBuffer, frame
from edges.test_master import FACTS, REPORT

WORLD = World(
    round=2,
    members=(Member(worker="w1", agent="a", address="h:1"),),
    donors={},
    restore=True,
    shares=(8,),
)
DEEP = [b"\x91" * 100_000, b"[" * 100_000, b'{"a":' * 100_000, b"\x81\xa1a" * 100_000]


@dataclass(frozen=True)
class Decoder:
    """One way in: bytes that are right, and their reader (from a file of this name,
    or just so).
    """

    name: str
    right: tuple[bytes, ...]
    read: Callable[[bytes], object]

    def __str__(self) -> str:
        return self.name


def codec(kind: Any, *messages: Any) -> Decoder:
    both_ways: wire.Codec[Any] = wire.Codec(kind)
    name = " | ".join(sorted({type(message).__name__ for message in messages}))
    return Decoder(name[:60], tuple(map(both_ways.encode, messages)), both_ways.decode)


def from_file(name: str, right: bytes, read: Callable[[Path], object], directory: Path) -> Decoder:
    def write_and_read(data: bytes) -> object:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(data)
        return read(directory)

    return Decoder(name, (right,), write_and_read)


def stamped(entry: Callable[..., entries.Entry], **fields: Any) -> bytes:
    return entries.encode(entry(at=1.0, now=2.0, **fields))


def journal_of(*payloads: bytes, directory: Path) -> bytes:
    journal = Journal(directory / "made")
    for payload in payloads:
        journal.append(payload)
    journal.close()
    return (directory / "made").read_bytes()


def read_manifest(directory: Path) -> object:
    store = Store(Directory(directory / "checkpoints"))
    return [state_of(store.load(step)) for step in store.steps()]


def checkpoint_files(directory: Path) -> tuple[Path, Path]:
    """A checkpoint of a small state: its manifest and its tensors."""
    copy = Image()
    tree = copy.take({"model": {"weight": torch.arange(6.0).reshape(2, 3)}, "committed": 3})
    store = Store(Directory(directory / "checkpoints"))
    checkpoint = Checkpoint(step=3, tree=tree, versions={}, data=bytes(copy.data))
    store.publish(store.draft(checkpoint, writer="w1"))
    (folder,) = (directory / "checkpoints").glob("step-*")
    (tensors,) = folder.glob("*.safetensors")
    return folder / "manifest.json", tensors


def everything(directory: Path) -> list[Decoder]:
    spec = recorded_run.spec()
    hello = wire.Hello(address="h:1", layout="x", facts=FACTS)
    commit = wire.CommitRecord(round=1, step=1, at=1.0, payloads=[REPORT])
    entry_heard = stamped(
        entries.Heard, agent="a", number=1, message=wire.Commits(records=[commit])
    )
    first_entry = entries.Began(
        at=1.0,
        now=2.0,
        attempt="1",
        life=1,
        spec=spec,
        run="r",
        started=0.0,
        before=entries.Before(sizes={"events.jsonl": 3}),
    )
    first_bytes = entries.encode(first_entry)
    write_job(directory, spec)
    write_contact(directory, Contact(address="h:1", token="t", pid=1, keeper=2))
    manifest, tensors = checkpoint_files(directory)
    log = recorded_run.RecordLog(directory / EVENTS, clock=VirtualClock(1.0))
    log.append("warning", message="one")
    log.append("round", round=1, world_size=1, workers=["w1"], step=0, cause="start")
    return [
        codec(
            wire.WorkerMessage,
            hello,
            wire.Arrive(round=1, step=2, phase="commit", payload=REPORT),
            wire.Evaluated(epoch=1, step=2, metrics={"auc": 0.5}),
        ),
        codec(
            wire.WorkerBound, wire.InstallRound(world=WORLD), wire.Publish(step=1, writers=["w1"])
        ),
        codec(
            wire.FromAgent,
            wire.FromAgent(1, 2, wire.FromWorker(worker="w1", message=hello)),
            wire.FromAgent(0, 0, wire.JoinJob(agent="a", session="s", host="h")),
        ),
        codec(
            wire.FromMaster,
            wire.FromMaster(0, 0, wire.Configure(spec=spec, run_dir="r", life=1, heard=0)),
            wire.FromMaster(3, 1, wire.InstallRound(world=WORLD)),
        ),
        codec(wire.TemplateMessage, wire.WorkerForked(worker="w1", pid=3)),
        codec(wire.Ask, wire.Ask(verb="resize", workers=3)),
        codec(wire.Answer, wire.Answer(ok=True, status={"phase": "running"})),
        Decoder("frames", (frame(b"one") + frame(b"two"),), lambda data: FrameBuffer().feed(data)),
        Decoder("journal entries", (entry_heard, first_bytes), entries.decode),
        Decoder("snapshot", (freeze(State.after(first_entry)),), thaw),
        Decoder(
            "journal",
            (journal_of(first_bytes, entry_heard, directory=directory),),
            lambda data: [
                entries.decode(read_frame) for read_frame in read_frames(data, name="journal")[0]
            ],
        ),
        from_file(JOB_FILE, (directory / JOB_FILE).read_bytes(), read_job, directory),
        from_file(CONTACT, (directory / CONTACT).read_bytes(), read_contact, directory),
        from_file(
            EVENTS,
            (directory / EVENTS).read_bytes(),
            lambda path: follow_events(path).poll(),
            directory,
        ),
        from_file(
            str(manifest.relative_to(directory)), manifest.read_bytes(), read_manifest, directory
        ),
        from_file(
            str(tensors.relative_to(directory)), tensors.read_bytes(), read_manifest, directory
        ),
        Decoder(
            "faults",
            (b"kill rank 1 at step 40; stop rank 0 for 5s at step 80; add 2 at step 60",),
            lambda data: parse_faults(data.decode("utf-8", "replace")),
        ),
        Decoder(
            "duration",
            (b"1h30m",),
            lambda data: parse_duration(data.decode("utf-8", "replace"), field="x"),
        ),
    ]


NAMES = [str(index) for index in range(18)]


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> list[Decoder]:
    return everything(tmp_path_factory.mktemp("fuzz"))


def damaged(right: bytes) -> st.SearchStrategy[bytes]:
    """The remains of right bytes after a few of them were changed, removed or added."""

    def apply(changes: list[tuple[int, int, bytes]]) -> bytes:
        data = right
        for place, length, put in changes:
            position = place % (len(data) + 1)
            data = data[:position] + put + data[position + length :]
        return data

    change = st.tuples(st.integers(0, max(len(right), 1)), st.integers(0, 4), st.binary(max_size=4))
    return st.lists(change, min_size=1, max_size=4).map(apply)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_right_is_read(decoders: list[Decoder], name: str) -> None:
    decoder = decoders[int(name)]
    for right in decoder.right:
        assert decoder.read(right) is not None


@pytest.mark.parametrize("name", NAMES)
@settings(
    max_examples=150, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_what_is_wrong_is_said_to_be(
    decoders: list[Decoder], name: str, data: st.DataObject
) -> None:
    decoder = decoders[int(name)]
    assert len(decoders) == len(NAMES)
    given_bytes = data.draw(st.one_of(st.binary(max_size=200), *map(damaged, decoder.right)))
    with contextlib.suppress(BrimError):
        decoder.read(given_bytes)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "nested", DEEP, ids=["msgpack", "json lists", "json objects", "msgpack maps"]
)
def test_what_is_nested_without_end_is_refused(
    decoders: list[Decoder], name: str, nested: bytes
) -> None:
    decoder = decoders[int(name)]
    with contextlib.suppress(BrimError):
        decoder.read(nested)


@settings(max_examples=200, deadline=2000)
@given(
    tree=st.recursive(
        st.one_of(st.none(), st.integers(-3, 99), st.text(max_size=3), st.just({"$tensor": 0})),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["$items", "$tuple", "a"]), inner),
        ),
    ),
    data=st.binary(max_size=64),
)
def test_well_summed_nonsense_in_checkpoints_is_found(tree: Any, data: bytes) -> None:
    with contextlib.suppress(BrimError):
        state_of(Checkpoint(step=1, tree=tree, versions={}, data=data))
