"""Records and messages that are well-formed and mean nothing: each reader says so in its documented
way.

The damage of `test_fuzz.py` is refused by checksums and types, mostly. Here a single value of
something right is another one, with the checksums made again: by a program of another version, or
by an attacker.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import socket
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import recorded_run
from brim import data as tables
from brim.coordination.job.participant import PeerLost
from brim.data import fitted
from brim.decoding import UNDECODABLE
from brim.domain.cluster import Cluster, Node
from brim.domain.resizing import Overheads
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import Admitted, Decision, JobState, Reason, Snapshot
from brim.domain.tenancy import Tenant
from brim.domain.workload import Job, Priority
from brim.errors import BrimError, EnvironmentFault, ProtocolError, SpecError
from brim.scheduler import cycles
from brim.scheduler.cluster_file import read_cluster_file
from brim.storage import checkpoints
from brim.storage.checkpoints import Checkpoint, Store
from brim.storage.contact import (
    CONTACT,
    SCHEDULER,
    Contact,
    SchedulerContact,
    read_contact,
    read_scheduler_contact,
)
from brim.storage.file_stores import Directory
from brim.storage.job_file import JOB_FILE, read_job
from brim.storage.yaml_file import read_yaml
from brim.telemetry.record_files import STEPS, follow_steps
from brim.train.state.checkpoint import Image
from brim.train.state.transfer import receive_state, send_state
from brim.wire.cluster import Submit
from brim.wire.nodes import Begin, KillJob, receive
from brim.wire.peer import Listener, connect
from brim.wire.proofs import PROOF_BYTES, proof
from edges.test_fuzz import damaged
from submissions import submission

QUICK = settings(
    max_examples=100, deadline=60_000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ODD = [
    None, True, -1, 0, 2**40, 2**70, 1e300, float("nan"), "", "x", "../../x", "a\0b", "é" * 99, [], {}, [[1]], [-1],
    [2**40, 2**40], {"$tensor": 0}, {"$tensor": "x"}, {"$tensor": 99}, {"$items": 3}, {"$items": [[[], 1]]},
    {"$tuple": 3}, ["load", [1]], ["quint8", [3]], ["float32", [-3, -3]], ["float32", [2**62, 4]],
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a tree of plain data, as the keys that lead to it."""
    yield path
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in inner:
        yield from places(item, (*path, key))


def with_other(value: Any, path: tuple[Any, ...], put: Any) -> Any:
    """The same tree with something else at one place."""
    if not path:
        return put
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = with_other(value[path[0]], path[1:], put)
    return copy


def twisted(right: Any) -> st.SearchStrategy[Any]:
    """Plain data in which one or two values are other ones, or went missing."""

    def once(value: Any) -> st.SearchStrategy[Any]:
        paths = st.sampled_from(list(places(value)))
        return st.builds(with_other, st.just(value), paths, st.sampled_from(ODD))

    return once(right) | once(right).flatmap(once)


# State between workers ----------------------------------------------------------------------------


def state_bytes() -> bytes:
    near_end, far_end = socket.socketpair()
    tree = {"model": {"weight": torch.arange(6.0)}, "many": {3: (1, "x")}, "committed": 3}
    with near_end, far_end:
        send_state(near_end, tree, timeout=5.0, cancelled=lambda: False)
        return far_end.recv(1 << 16)


def receive_bytes(data: bytes) -> Any:
    near_end, far_end = socket.socketpair()
    with near_end:
        with far_end:
            far_end.sendall(data)
        return receive_state(near_end, timeout=5.0, cancelled=lambda: False)


STATE = state_bytes()
HEADER = json.loads(STATE[8 : 8 + int.from_bytes(STATE[:8], "little")])


def with_header(header: Any) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + torch.arange(6.0).numpy().tobytes()


def test_a_state_is_taken() -> None:
    assert receive_bytes(STATE)["many"] == {3: (1, "x")}
    assert receive_bytes(with_header(HEADER))["committed"] == 3


@QUICK
@given(data=damaged(STATE) | twisted(HEADER).map(with_header))
def test_what_is_no_state_is_refused(data: bytes) -> None:
    with contextlib.suppress(ProtocolError, PeerLost):
        receive_bytes(data)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'[{"$tensor": 7}, []]',
        b'[{"$items": [[[], 1]]}, []]',
        b'[null, [["float32", [1099511627776, 1099511627776]]]]',
        b'[null, [["float32", [35184372088832]]]]',
        b'[null, [["quint8", [3]]]]',
    ],
    ids=[
        "nested without end",
        "no such tensor",
        "no key",
        "a shape beyond any",
        "more memory than there is",
        "quantized",
    ],
)
def test_a_header_that_cannot_be_meant(header: bytes) -> None:
    with pytest.raises(ProtocolError, match="not the state of a job"):
        receive_bytes(len(header).to_bytes(8, "little") + header)


# Greetings ----------------------------------------------------------------------------------------

SECRET = b"s" * 32
GREETING = (5).to_bytes(2, "little") + proof(SECRET, b"call", b"x", b"state") + b"state"


@settings(max_examples=40, deadline=60_000)
@given(messages=st.lists(damaged(GREETING) | st.binary(max_size=700), min_size=1, max_size=3))
def test_strangers_words_are_forgotten(messages: list[bytes]) -> None:
    listener = Listener("127.0.0.1", SECRET)
    host, _, port = listener.address.rpartition(":")
    with contextlib.closing(listener), contextlib.ExitStack() as strangers:
        for message in messages:
            stranger = strangers.enter_context(socket.create_connection((host, int(port))))
            stranger.sendall(message)
        friend = threading.Thread(
            target=lambda: strangers.enter_context(
                connect(
                    listener.address,
                    "state",
                    SECRET,
                    timeout=10.0,
                    patience=10.0,
                    cancelled=lambda: False,
                )
            )
        )
        friend.start()
        listener.accept("state", timeout=10.0, cancelled=lambda: False).close()
        friend.join(10.0)
        assert not friend.is_alive()


@settings(max_examples=40, deadline=60_000)
@given(message=st.binary(max_size=2 * PROOF_BYTES))
def test_an_answer_that_proves_nothing(message: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def answer() -> None:
            peer, _ = impostor.accept()
            with peer:
                peer.sendall(message)
                peer.shutdown(socket.SHUT_WR)
                peer.recv(1 << 12)

        answers = threading.Thread(target=answer)
        answers.start()
        address = f"127.0.0.1:{impostor.getsockname()[1]}"
        with pytest.raises(PeerLost):
            connect(address, "state", SECRET, timeout=10.0, patience=10.0, cancelled=lambda: False)
        answers.join(10.0)
        assert not answers.is_alive()


# Requests to a node -------------------------------------------------------------------------------

REQUESTS = [
    msgspec.msgpack.encode(KillJob(job="a-1")),
    msgspec.msgpack.encode(
        Begin(job="a-1", arguments=["x"], python=("p", "1"), environment={"A": "b"}, directory="/")
    ),
]


@QUICK
@given(data=st.one_of(st.binary(min_size=1, max_size=64), *map(damaged, REQUESTS)).filter(bool))
def test_a_request_that_is_none_leaves_nothing_open(data: bytes) -> None:
    near_end, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near_end, far_end, open(os.devnull, "rb") as file:
        descriptors_before = set(os.listdir("/proc/self/fd"))
        socket.send_fds(near_end, [data], [file.fileno()])
        try:
            received = receive(far_end)
        except ProtocolError:
            received = None
        for descriptor in received[1] if received else []:
            os.close(descriptor)
        # What others have closed meanwhile, such as a collected file, is none of its.
        assert not set(os.listdir("/proc/self/fd")) - descriptors_before


# The scheduler's records --------------------------------------------------------------------------


def a_cycle() -> bytes:
    job = Job(
        id="a-1",
        tenant="ads",
        submitted=1.0,
        work=100.0,
        curve=ScalingCurve(points=((1, 1.0), (2, 1.8))),
        deadline=500.0,
        priority=Priority.ONLINE,
        nodes=("n1",),
    )
    snapshot = Snapshot(
        now=2.0,
        cluster=Cluster(nodes=(Node(id="n1", devices=4),)),
        capacity=4,
        jobs=(JobState(job, remaining=100.0),),
        arrived=("a-1",),
        overheads=Overheads(name="measured"),
        tenants=(Tenant(id="ads"),),
    )
    decision = Decision(
        workers={"a-1": 2},
        verdicts=(Admitted(job="a-1", reason=Reason.FITS, detail="by 100"),),
        reasons={"a-1": (Reason.ORDER, "so")},
        nodes={"a-1": {"n1": 2}},
    )
    return cycles.encode_cycle(snapshot, decision)


CYCLE = a_cycle()
SAID = json.loads(zlib.decompress(CYCLE))
REMEMBERED = {
    "policies": [["ads", 0, {"a-1": {"pieces": [], "spare": 1.0}}]],
    "blocks": {"a-1": [[0, 2]]},
}


def test_a_cycle_is_read() -> None:
    snapshot, decision = cycles.decode_cycle(CYCLE)
    assert (snapshot.jobs[0].job.id, decision.workers) == ("a-1", {"a-1": 2})
    memory = cycles.decode_memory(msgspec.msgpack.encode(REMEMBERED), policy="brim")
    assert memory.blocks == {"a-1": ((0, 2),)}


@QUICK
@given(
    data=damaged(CYCLE)
    | twisted(SAID).map(lambda content: zlib.compress(json.dumps(content).encode()))
)
def test_what_is_no_cycle_is_refused(data: bytes) -> None:
    with contextlib.suppress(EnvironmentFault):
        cycles.decode_cycle(data)


@QUICK
@given(
    data=st.binary(max_size=99) | twisted(REMEMBERED).map(lambda content: plain_msgpack(content))
)
def test_an_invalid_cycle_memory_is_refused(data: bytes) -> None:
    for policy in ("brim", "pollux", "edf"):
        with contextlib.suppress(EnvironmentFault):
            cycles.decode_memory(data, policy=policy)


def plain_msgpack(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:  # it has no larger numbers than this
        return b"\xcf" + b"\xff" * 8


def test_oversized_curves_are_refused() -> None:
    altered = with_other(SAID, ("saw", "jobs", 0, "curve"), [[1, 1.0], [2**40, 2.0]])
    with pytest.raises(EnvironmentFault, match="ascending worker counts from 1 to 1,048,576"):
        cycles.decode_cycle(zlib.compress(json.dumps(altered).encode()))


def test_a_cycle_does_not_ask_for_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycles, "_MAX_CYCLE_BYTES", 1 << 20)
    bomb = zlib.compress(b" " * (64 << 20) + json.dumps(SAID).encode())
    tracemalloc.start()
    try:
        with pytest.raises(EnvironmentFault, match="damaged"):
            cycles.decode_cycle(bomb)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


SUBMITTED = msgspec.to_builtins(
    Submit(submission=submission(tenant="ads"), name="flights", key="k")
)


@QUICK
@given(text=twisted(SUBMITTED).map(json.dumps))
def test_what_is_no_submission_is_refused(text: str) -> None:
    with contextlib.suppress(BrimError, *UNDECODABLE):  # as the API answers: 400
        assert msgspec.json.decode(text, type=Submit).submission.spec.workers.maximum >= 1


# YAML that people write ---------------------------------------------------------------------------

CLUSTER = (
    b"nodes: [{name: n1, workers: 8}, {name: n2, workers: 4}]\ntenants:\n  - {name: ads, "
    b"guaranteed: 2}\n"
)
WORDS = [
    "nodes", "name", "workers", "tenants", "grace", ": ", "- ", "{", "}", "[", "]", ", ", "\n", "\n  ", "\n    ", "? ",
    "&a ", "*a", "&b ", "*b", "<<: ", "!!int ", "!!float ", "!!bool ", "!!timestamp ", "!!binary ", "!!set ", "!!omap ",
    "!!pairs ", "!!map ", "!!str ", "!!seq ", "!!null ", "!x ", "2001-99-99", "0b", "0x", "1:4", ".inf", "1e9",
    "|", ">", "%YAML 1.1", "---", "...", "\t", '"', "'", "#", "@", "x",
]  # fmt: skip
YAML = st.lists(st.sampled_from(WORDS), max_size=12).map(lambda words: "".join(words).encode())


@QUICK
@given(data=damaged(CLUSTER) | YAML | st.binary(max_size=99))
def test_what_is_no_cluster_is_refused(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_bytes(data)
    for read in (read_cluster_file, lambda path: str(read_yaml(path, words=True))):
        with contextlib.suppress(SpecError):
            read(file)


LEVELS = "abcdefghij"
ALIASES = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{level}'] * 10)}]\n"
    for level, name in itertools.pairwise(LEVELS)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{level}'] * 10)}]}}\n"
    for level, name in itertools.pairwise(LEVELS)
)


@pytest.mark.parametrize("words", [True, False], ids=["words", "typed"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 5_000, "got"),
        (ALIASES, "1,000,000 values in all"),
        ("&a [*a]", "got"),
        (MERGES, "'<<', which is not supported"),
        ("nodes: []\n" * 2, "'nodes' twice"),
        ("{[]: 1, []: 2}", "got"),
        ("".join(f"a{k}: 1\n" for k in range(200_000)), "at most 1 MiB"),
    ],
    ids=["nested", "aliases", "a part of itself", "merges", "twice", "odd keys", "large"],
)
def test_a_file_without_end(tmp_path: Path, content: str, message: str, words: bool) -> None:
    (tmp_path / "cluster.yaml").write_text(content)
    with pytest.raises(SpecError, match=re.escape(message)):
        read_yaml(tmp_path / "cluster.yaml", words=words)


@pytest.mark.parametrize(
    "value", ["2001-99-99", "!!timestamp x", "!!bool x", "!!int x", "!!float x", "!!map [1]"]
)
def test_values_must_match_their_tags(tmp_path: Path, value: str) -> None:
    (tmp_path / "cluster.yaml").write_text(f"grace: {value}\n")
    with pytest.raises(SpecError, match=r"cluster\.yaml"):
        read_yaml(tmp_path / "cluster.yaml")


# What a run leaves --------------------------------------------------------------------------------

FITS = [
    {
        "files": ["a.csv"],
        "columns": [
            {"vocabulary": ["color"], "buckets": None, "min_count": 1, "by": False},
            {"numeric": "size", "transform": "standard", "missing": None},
        ],
        "fitted": [{"values": ["red"]}, {"moments": [0.0, 1.0, 2.0]}],
    }
]
COLUMNS = (tables.vocabulary("color"), tables.numeric("size"))


def find_columns(run: Path, fits: Any) -> Any:
    content = {"fits": fits, "sha256": fitted._checksum(fits)}
    (run / fitted.COLUMNS).write_text(json.dumps(content))
    try:
        fitted.use(run)
        return fitted.find(["a.csv"], COLUMNS, ())
    finally:
        fitted._in_use = None


def test_fitted_columns_are_found(tmp_path: Path) -> None:
    assert find_columns(tmp_path, FITS).vocabulary_size == 2


@QUICK
@given(fits=twisted(FITS))
def test_what_was_not_fitted_is_refused(fits: Any, tmp_path: Path) -> None:
    with contextlib.suppress(EnvironmentFault):
        encoder = find_columns(tmp_path, fits)
        assert encoder is None or encoder.vocabulary_size


def a_checkpoint(run: Path) -> Store:
    store = Store(Directory(run / "checkpoints"))
    copy = Image()
    tree = copy.take({"model": {"weight": torch.arange(6.0)}, "committed": 3})
    for step in (3, 4):
        checkpoint = Checkpoint(
            step=step, tree=tree, versions={"torch": "2"}, data=bytes(copy.data)
        )
        store.publish(store.draft(checkpoint, writer="w1"))
    return store


def put_manifest(run: Path, fields: Any) -> None:
    (manifest,) = (run / "checkpoints").glob("step-*3/manifest.json")
    manifest.write_text(json.dumps({**fields, "manifest_sha256": checkpoints._checksum(fields)}))


def fields_of(run: Path) -> dict[str, Any]:
    (manifest,) = (run / "checkpoints").glob("step-*3/manifest.json")
    fields: dict[str, Any] = json.loads(manifest.read_bytes())
    del fields["manifest_sha256"]
    return fields


@settings(QUICK, max_examples=80)
@given(data=st.data())
def test_what_is_no_manifest_is_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = tmp_path_factory.mktemp("run")
    store = a_checkpoint(run)
    fields = data.draw(twisted(fields_of(run)).filter(lambda value: isinstance(value, dict)))
    put_manifest(run, fields)
    with contextlib.suppress(EnvironmentFault):
        store.load(3)
    assert store.newest_sound()[0] is not None
    store.prune(keep=1, best=None)
    assert store.steps() == [4]


def test_impossible_file_names_in_manifests_are_refused(tmp_path: Path) -> None:
    store = a_checkpoint(tmp_path)
    for name in ("a\0b", "", ".."):
        fields = fields_of(tmp_path)
        fields["file"] |= {"name": name}
        put_manifest(tmp_path, fields)
        with pytest.raises(EnvironmentFault, match="damaged"):
            store.load(3)


def test_a_manifest_names_no_file_of_others(tmp_path: Path) -> None:
    store = a_checkpoint(tmp_path)
    own_file = tmp_path / "precious"
    own_file.write_text("x")
    fields = fields_of(tmp_path)
    fields["file"] |= {"name": "../../precious", "size_bytes": 1}
    put_manifest(tmp_path, fields)
    with pytest.raises(EnvironmentFault, match="is damaged"):
        store.load(3)
    store.prune(keep=1, best=None)
    assert own_file.exists()


CONTACTS = {
    CONTACT: msgspec.to_builtins(Contact(address="h:1", token="t", pid=11, keeper=12)),
    SCHEDULER: msgspec.to_builtins(SchedulerContact(host="h", port=1, token="t", pid=11)),
}


@QUICK
@given(data=st.data())
def test_what_is_no_contact_is_not_called(data: st.DataObject, tmp_path: Path) -> None:
    for name, right in CONTACTS.items():
        text = json.dumps(data.draw(twisted(right))).encode()
        (tmp_path / name).write_bytes(data.draw(st.just(text) | damaged(text)))
    master, scheduler = read_contact(tmp_path), read_scheduler_contact(tmp_path)
    assert master is None or min(master.pid, master.keeper) > 0
    assert scheduler is None or (scheduler.pid > 0 and 0 <= scheduler.port < 2**16)


@pytest.mark.parametrize("pid", [-1, 0, 2**31])
def test_no_signal_reaches_all_processes(tmp_path: Path, pid: int) -> None:
    (tmp_path / CONTACT).write_text(json.dumps({**CONTACTS[CONTACT], "pid": pid}))
    assert read_contact(tmp_path) is None


SPEC = json.loads(msgspec.json.encode(recorded_run.spec()))


@QUICK
@given(spec=twisted(SPEC))
def test_what_is_no_job_is_refused(spec: Any, tmp_path: Path) -> None:
    (tmp_path / JOB_FILE).write_text(json.dumps(spec))
    with contextlib.suppress(EnvironmentFault, SpecError):
        read_job(tmp_path)


STEP = {"step": 1, "at": 1.0, "epoch": 1, "round": 1, "loss": 0.5, "seconds": 0.1, "samples": 4}


@QUICK
@given(data=st.data())
def test_steps_that_are_none_are_passed_over(data: st.DataObject, tmp_path: Path) -> None:
    lines = data.draw(
        st.lists(twisted(STEP).map(lambda content: json.dumps(content).encode()), max_size=3)
    )
    content = data.draw(st.just(b"\n".join(lines)) | damaged(b"\n".join(lines)))
    (tmp_path / STEPS).write_bytes(content)
    assert len(follow_steps(tmp_path).poll()) <= content.count(b"\n")
    follow_steps(tmp_path, at_most=10).poll()
    reader = follow_steps(tmp_path)
    while reader.poll(at_once=16):
        pass
