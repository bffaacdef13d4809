"""Weights that training leaves as they are, in checkpoints: stored once, and never lost."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from brim.domain.checkpointing import Interval
from brim.domain.frozen_parts import FrozenPart
from brim.domain.table_parts import StoredFile
from brim.errors import EnvironmentFault, SpecError
from brim.storage.checkpoints import Checkpoint, Store
from brim.storage.file_stores import Directory
from brim.storage.kept_runs import files_of, read_file
from brim.train.context import spec_of_a_loner
from brim.train.job import Job
from brim.train.membership import Loner
from brim.train.state import transfer
from brim.train.state.checkpoint import state_of
from brim.train.state.writer import write_draft
from brim.wire.messages import CheckpointDrafted, CheckpointMade, Publish, Warn, WorkerMessage

WIDTH = 160  # 100 KB of frozen weights, and 5 KB of others
FROZEN = WIDTH * WIDTH * 4
Change = Callable[[nn.Module], object]


class Adapted(nn.Module):
    """A frozen layer with a small one beside it, a constant buffer, and one that changes."""

    mask: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(width, width, bias=False).requires_grad_(False)
        self.down = nn.Linear(width, 4, bias=False)
        self.up = nn.Linear(4, width, bias=False)
        self.norm = nn.BatchNorm1d(width, affine=False)
        self.register_buffer("mask", torch.ones(width, width).tril())

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.base(inputs) + self.up(self.down(inputs))
        found: Tensor = self.norm(hidden @ self.mask).mean(1)
        return found

    def follow(self) -> None:
        """Change frozen weights behind an update."""


class World:
    """A run in one process: its place of checkpoints, and what was said of them."""

    def __init__(
        self,
        place: Path,
        *,
        keep: int = 2,
        writer: str = "w1",
        width: int = WIDTH,
        kind: type[Adapted] = Adapted,
    ) -> None:
        self.place, self.store, self.messages = (
            place,
            Store(Directory(place)),
            list[WorkerMessage](),
        )
        self.net, self._width = kind(width), width
        spec = replace(
            spec_of_a_loner(), checkpoint_every=Interval(steps=1), keep=keep, micro_batches=1
        )
        trained = [part for part in self.net.parameters() if part.requires_grad]
        optimizer = torch.optim.Adam(trained)
        optimizer.register_step_post_hook(lambda *_: self.net.follow())
        self.job = Job(self.net, optimizer, spec=replace(spec, audit=False), context=None)
        world = self

        class Permitting(Loner):
            def tell(self, message: WorkerMessage) -> None:
                world.messages.append(message)
                if isinstance(message, CheckpointDrafted):
                    world.job.parts.checkpoints.permit(Publish(step=message.step, writers=[]))

        self.job.parts.members = Permitting()
        self.job.parts.checkpoints.keep_in(str(place), writer=writer)
        self.weights: dict[int, dict[str, Tensor]] = {}

    def train(
        self, steps: int, changes: dict[int, Change] | None = None, *, until: int | None = None
    ) -> None:
        """Train so many steps in all, or fewer, with changes of the model before some of them."""
        torch.manual_seed(1)
        data = TensorDataset(torch.randn(8 * steps, self._width), torch.randn(8 * steps))
        for batch in self.job.batches(data, global_batch_size=8, epochs=1):
            if self.job.committed in (changes or {}):
                self.job.parts.checkpoints.drain()
                self.job.parts.checkpoints.await_copy()
                (changes or {})[self.job.committed](self.net)
            loss = (self.net(batch.inputs) - batch.target).square().mean()
            if self.job.step(loss) is not None:
                self.note()
                self.job.parts.checkpoints.drain()
                if self.job.committed == until:
                    return

    def note(self) -> None:
        state = {name: part.detach().clone() for name, part in self.net.state_dict().items()}
        self.weights[self.job.committed] = state

    def stored(self, step: int) -> dict[str, Tensor]:
        model: dict[str, Tensor] = state_of(self.store.load(step))["model"]
        return model

    def frozen_files(self) -> list[str]:
        return sorted(path.name for path in (self.place / "frozen").glob("*"))

    def sizes(self) -> dict[int, int]:
        return {
            message.step: message.size_bytes
            for message in self.messages
            if isinstance(message, CheckpointMade)
        }

    def check(self) -> None:
        assert self.store.steps()
        assert self.store.drafts() == []
        for step in self.store.steps():
            for name, part in self.stored(step).items():
                assert torch.equal(part, self.weights[step][name]), (step, name)


def test_frozen_weights_are_stored_once(tmp_path: Path) -> None:
    world = World(tmp_path, keep=5)
    world.train(5)
    world.check()
    assert len(world.frozen_files()) == 2  # the weights, and the constant buffer once it was alike
    sizes = world.sizes()
    assert sizes[1] > 2 * FROZEN
    assert FROZEN < sizes[2] < 2 * FROZEN
    assert max(sizes[3], sizes[4], sizes[5]) < 0.4 * FROZEN
    assert world.store.load(5).size_bytes > 2 * FROZEN


class Half(Adapted):
    """The frozen layer has numbers of two bytes."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.base.to(torch.bfloat16)

    def forward(self, inputs: Tensor) -> Tensor:
        frozen = self.base(inputs.bfloat16()).float()
        found: Tensor = (frozen + self.up(self.down(inputs))).mean(1)
        return found


class Whole(Adapted):
    """The frozen layer is a buffer of whole numbers, and one of its scales."""

    codes: Tensor
    scales: Tensor

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("codes", (self.base.weight * 1000).to(torch.int8).repeat(1, 4))
        self.register_buffer("scales", torch.rand(width, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        weight = self.codes[:, : inputs.shape[1]] * self.scales
        found: Tensor = (inputs @ weight.t() + self.up(self.down(inputs))).mean(1)
        return found


class Tied(Adapted):
    """The frozen layer hangs in two places, and is laid out by columns."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.base.weight.data = self.base.weight.detach().t().contiguous().t()
        self.head = nn.Linear(width, width, bias=False)
        self.head.weight = self.base.weight

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.head(self.base(inputs) + self.up(self.down(inputs))).mean(1)
        return found


class Taught(Adapted):
    """The frozen layer follows a trained one: it is an average of weights."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.student = nn.Linear(width, width, bias=False)

    def follow(self) -> None:
        self.base.weight.data.mul_(0.9).add_(self.student.weight.data, alpha=0.1)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = (
            self.student(inputs) + self.up(self.down(inputs)) - self.base(inputs)
        ).mean(1)
        return found


class Normed(Adapted):
    """The frozen layer is a parametrization's."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        nn.utils.parametrizations.weight_norm(self.base)
        self.base.requires_grad_(False)


@pytest.mark.parametrize(
    ("kind", "frozen_bytes"),
    [
        (Half, FROZEN // 2 + FROZEN),  # with the mask
        (Whole, FROZEN + FROZEN + FROZEN),
        (Tied, FROZEN + FROZEN),
        (Taught, FROZEN),
        (Normed, FROZEN + FROZEN),
    ],
)
def test_models_of_each_kind_resume_as_they_were(
    kind: type[Adapted], frozen_bytes: int, tmp_path: Path
) -> None:
    world = World(tmp_path, keep=4, kind=kind)
    world.train(6, until=5)
    world.job.parts.checkpoints.drain()
    world.check()
    frozen = world.store.load(4).frozen_bytes
    assert frozen_bytes <= frozen < 1.1 * frozen_bytes
    resumed = World(tmp_path, kind=kind, writer="w2")
    resumed.train(6)
    whole = World(tmp_path / "whole", kind=kind)
    whole.train(6)
    for name, part in whole.weights[6].items():
        assert torch.equal(part, resumed.weights[6][name]), name


def fill(net: nn.Module) -> None:
    net.get_parameter("base.weight").data.fill_(2.0)


def fill_by_numpy(net: nn.Module) -> None:
    array: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = net.get_parameter(
        "base.weight"
    ).numpy()
    array[0, 0] += 1.0


def replace_memory(net: nn.Module) -> None:
    net.get_parameter("base.weight").data = torch.zeros(WIDTH, WIDTH)


def change_buffer(net: nn.Module) -> None:
    net.get_buffer("mask")[0, 1] = 0.5


def transpose(net: nn.Module) -> None:
    weight = net.get_parameter("base.weight")
    weight.data = weight.detach().t().contiguous().t()


@pytest.mark.parametrize(
    "change",
    [fill, fill_by_numpy, replace_memory, change_buffer, transpose],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("moments", [(1,), (3,), (2, 3, 4)])
def test_changed_weights_are_in_the_checkpoint(
    change: Change, moments: tuple[int, ...], tmp_path: Path
) -> None:
    world = World(tmp_path, keep=6)
    world.train(6, dict.fromkeys(moments, change))
    world.check()


def test_files_go_with_their_last_checkpoint(tmp_path: Path) -> None:
    world = World(tmp_path, keep=2)
    counts = iter(range(9))

    def count(net: nn.Module) -> None:
        net.get_parameter("base.weight").data.fill_(next(counts))

    world.train(6, {1: count, 3: count, 4: count, 5: count})
    world.check()
    assert world.store.steps() == [5, 6]
    named = {part.file.name for step in (5, 6) for part in world.store.load(step).frozen}
    assert {f"frozen/{name}" for name in world.frozen_files()} == named


def test_a_resumed_run_writes_nothing_again(tmp_path: Path) -> None:
    World(tmp_path).train(6, until=3)
    first_files = World(tmp_path).frozen_files()
    resumed = World(tmp_path, writer="w2")
    with torch.no_grad():
        resumed.net.base.weight.zero_()  # what the checkpoint has must come back
    resumed.train(6)
    resumed.check()
    assert resumed.frozen_files() == first_files
    whole = World(tmp_path / "whole")
    whole.train(6)
    for name, part in whole.weights[6].items():
        assert torch.equal(part, resumed.weights[6][name])


def test_another_writer_finds_the_stored_file(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.train(4, {3: lambda net: world.job.parts.checkpoints._frozen.forget()})
    world.check()
    assert len(world.frozen_files()) == 2


def test_a_file_that_is_gone_is_written_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.train(5, {3: lambda net: shutil.rmtree(tmp_path / "frozen")})
    warnings = [message.message for message in world.messages if isinstance(message, Warn)]
    assert any("which is gone" in text for text in warnings)
    assert world.store.steps()[-1] == 5
    assert torch.equal(world.stored(5)["base.weight"], world.net.base.weight)


def test_files_of_living_writers_stay(tmp_path: Path) -> None:
    World(tmp_path).train(1)
    store = Store(Directory(tmp_path))
    file = Store(Directory(tmp_path)).write_frozen(b"weights", writer="w7")
    store.prune(keep=1, best=None, writers={"w7"})
    assert file.name in Directory(tmp_path).names()
    store.prune(keep=1, best=None)
    assert file.name not in Directory(tmp_path).names()
    assert store.load(1).frozen, "what a checkpoint names is still there"


def test_copies_of_a_run_have_its_frozen_weights(tmp_path: Path) -> None:
    run = tmp_path / "run"
    World(run / "checkpoints").train(2)
    for file in files_of(run, checkpoints=True):
        path = tmp_path / "copy" / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(read_file(run, file.name, 0))
    original, copy = (Store(Directory(tmp_path / part / "checkpoints")) for part in ("run", "copy"))
    assert copy.steps() == [1, 2]
    assert copy.load(2) == original.load(2)


def test_heirs_name_the_stored_weights(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.train(3)
    files = world.frozen_files()
    world.job.parts.checkpoints._frozen.forget()  # as a worker that has written nothing
    checkpoint, copy, tables = world.job.parts.checkpoints._take()
    heir = replace(checkpoint, step=4)
    write_draft(world.store, heir, copy=copy, tables=tables, writer="heir_1")
    world.store.adopt("heir_1", at_most=4)
    assert world.store.steps() == [2, 3, 4]
    assert set(files) < set(world.frozen_files())
    added = (tmp_path / "frozen").glob("heir_1-*")
    assert sum(path.stat().st_size for path in added) < FROZEN / 10, "averages that no step changed"
    assert torch.equal(world.stored(4)["base.weight"], world.net.base.weight)


@pytest.mark.parametrize("damage", ["cut", "other bytes", "gone"])
def test_damaged_files_are_named(damage: str, tmp_path: Path) -> None:
    World(tmp_path).train(1)
    (path,) = (tmp_path / "frozen").iterdir()
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-4] if damage == "cut" else content[:-4] + bytes(4))
    with pytest.raises(EnvironmentFault, match=path.name):
        Store(Directory(tmp_path)).load(1)


def test_unfrozen_layers_are_stored_as_trained(tmp_path: Path) -> None:
    world = World(tmp_path, keep=4)
    world.train(3)
    tree = world.job.parts.state.get()
    world.net.base.weight.requires_grad_(True)
    copy, _ = world.job.parts.checkpoints._take()[1:]
    copy.data()
    assert len(copy.frozen.digests) == 1  # the constant buffer alone
    assert tree["requires_grad of"]["base.weight"] is False


@pytest.mark.parametrize(
    "tensors", [((99, "a"),), ((0, "unknown"),)], ids=["a number of no tensor", "an unknown digest"]
)
def test_nonsense_is_no_state(tensors: tuple[tuple[int, str], ...], tmp_path: Path) -> None:
    World(tmp_path).train(1)
    found = Store(Directory(tmp_path)).load(1)
    part = replace(found.frozen[0], tensors=tensors)
    with pytest.raises(EnvironmentFault, match="holds no state"):
        state_of(replace(found, frozen=(part,)))


def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    store = Store(Directory(tmp_path))
    file = StoredFile(name="../outside", sha256="", size_bytes=1)
    part = FrozenPart(file=file, tensors=())
    checkpoint = Checkpoint(step=1, tree={}, versions={}, data=b"x", frozen=(part,))
    with pytest.raises(EnvironmentFault, match="is damaged"):
        store.publish(store.draft(checkpoint, writer="w1"))


def test_small_models_have_one_file(tmp_path: Path) -> None:
    world = World(tmp_path, width=16)
    world.train(3)
    world.check()
    assert world.frozen_files() == []


# Newcomers ----------------------------------------------------------------------------------------


class Counted:
    """Two ends of a stream, and the bytes that the first gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.ends = socket.create_connection(server.getsockname()), server.accept()[0]
        self.sent = 0
        write: Any = vars(transfer)["write_all"]

        def count(peer: socket.socket, data: Sequence[memoryview], **options: Any) -> None:
            if peer is self.ends[0]:
                self.sent += sum(view.nbytes for view in data)
            write(peer, data, **options)

        monkeypatch.setattr(transfer, "write_all", count)

    def hand_over(self, giver: World, taker: World) -> Any:
        """Give the state of a world to another, and return it as it came."""
        with self.ends[0], self.ends[1], ThreadPoolExecutor(1) as pool:
            state = giver.job.parts.state
            given = pool.submit(
                transfer.send_state,
                self.ends[0],
                state.get(),
                frozen=state.frozen().values(),
                timeout=9.0,
                cancelled=lambda: False,
            )
            own = taker.job.parts.state.frozen().values()
            found = transfer.receive_state(
                self.ends[1], frozen=own, timeout=9.0, cancelled=lambda: False
            )
            given.result()
        return found


@pytest.mark.parametrize(
    ("change_giver", "change_taker", "sent"),
    [
        (None, None, 0),
        (fill, None, 1),
        (None, fill, 1),
        (fill, fill, 0),
        (change_buffer, fill_by_numpy, 2),
        (transpose, None, 0),
        (None, transpose, 0),
    ],
)
def test_newcomers_get_the_weights_that_differ(
    change_giver: Change | None,
    change_taker: Change | None,
    sent: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    giver, taker = World(tmp_path / "giver"), World(tmp_path / "taker")
    giver.train(2)
    for world, change in ((giver, change_giver), (taker, change_taker)):
        (change or (lambda net: None))(world.net)
    counted = Counted(monkeypatch)
    tree = counted.hand_over(giver, taker)
    assert sent * FROZEN < counted.sent < (sent + 0.6) * FROZEN
    taker.job.parts.state.put(tree)
    assert taker.job.parts.state.digests() == giver.job.parts.state.digests()
    expected = giver.net.base.weight
    assert torch.equal(taker.net.base.weight, expected)
    assert taker.net.base.weight.stride() == expected.stride()


@pytest.mark.parametrize("change", [None, fill, fill_by_numpy, change_buffer])
def test_lines_before_the_batches_change_no_inherited_weight(
    change: Change | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    giver, taker = World(tmp_path / "giver"), World(tmp_path / "taker")
    giver.train(2, until=1)
    memory = taker.net.base.weight.data_ptr()
    version = taker.net.base.weight._version
    tree = Counted(monkeypatch).hand_over(giver, taker)
    taker.job.parts.state.has_lines_between = True
    taker.job.parts.state.put(tree)
    assert taker.net.base.weight.data_ptr() == memory
    assert taker.net.base.weight._version == version, "nothing is written to a template's pages"
    taker.job.parts.state.schedule = giver.job.parts.state.schedule
    (change or (lambda net: None))(taker.net)
    taker.job.parts.state.put_again()
    assert taker.job.parts.state.digests() == giver.job.parts.state.digests()


# Files that weights are mapped from ---------------------------------------------------------------


def mapped_from(path: Path) -> type[Adapted]:
    """The network with its frozen layer in a file, as libraries of safetensors have it."""
    if not path.exists():
        save_file({"weight": Adapted(WIDTH).base.weight.detach()}, path)

    class Mapped(Adapted):
        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.base.weight.data = load_file(path)["weight"]

    return Mapped


def own_pages(tensor: Tensor) -> int:
    """The kilobytes of the mapping around a tensor that are this process's alone, by writes."""
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head, _, value = line.partition(" ")
        if "-" in head and not head.endswith(":"):
            start, end = (int(address, 16) for address in head.split("-"))
            is_inside = start <= tensor.data_ptr() < end
        elif is_inside and head == "Anonymous:":
            return int(value.split()[0])
    raise AssertionError("a tensor outside of all memory")


@pytest.mark.parametrize("has_lines_between", [False, True])
def test_newcomers_share_the_pages_of_a_file(
    has_lines_between: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = mapped_from(tmp_path / "base")
    giver, taker = (World(tmp_path / name, kind=kind) for name in ("giver", "taker"))
    giver.train(2, until=1)
    state = taker.job.parts.state
    state.has_lines_between = has_lines_between
    state.put(Counted(monkeypatch).hand_over(giver, taker))
    state.schedule = giver.job.parts.state.schedule
    state.put_again()
    assert state.digests() == giver.job.parts.state.digests()
    assert own_pages(taker.net.base.weight) == own_pages(giver.net.base.weight) == 0


@pytest.mark.parametrize("name", ["base", "base\r 2"])
def test_restored_weights_share_the_pages_of_a_file(name: str, tmp_path: Path) -> None:
    kind = mapped_from(tmp_path / name)
    first = World(tmp_path / "run", kind=kind)
    first.train(2)
    second = World(tmp_path / "run", kind=kind, writer="w2")
    second.job.parts.state.put(state_of(first.store.load(2)))
    assert second.job.parts.state.digests() == first.job.parts.state.digests()
    assert own_pages(second.net.base.weight) == 0


def overwritten(path: Path) -> Change:
    """Write other weights into the file, as programs do that open it anew."""

    def change(_: nn.Module) -> None:
        with path.open("r+b") as file:
            file.seek(-FROZEN // 2, os.SEEK_END)
            file.write(bytes(1024))

    return change


def replaced(path: Path) -> Change:
    """Put another file in its place, as programs do that write files whole."""

    def change(_: nn.Module) -> None:
        new = path.with_suffix(".new")
        save_file({"weight": torch.zeros(WIDTH, WIDTH)}, new)
        new.replace(path)

    return change


def touched(path: Path) -> Change:
    return lambda _: os.utime(path)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_file_written_to_ends_the_job(tmp_path: Path) -> None:
    path, others = tmp_path / "base", set(threading.enumerate())
    world = World(tmp_path / "run", kind=mapped_from(path), keep=6)
    with pytest.raises(SpecError, match="written to while this job trains from it"):
        world.train(6, {3: overwritten(path)})
    for thread in set(threading.enumerate()) - others:  # the error of a copy ends its writer, too
        thread.join(20)
    assert world.store.steps() == [1, 2, 3], "what came of other weights is no checkpoint"
    world.check()


@pytest.mark.parametrize("kind_of_change", [replaced, touched])
def test_file_that_keeps_its_content_may_go(
    kind_of_change: Callable[[Path], Change], tmp_path: Path
) -> None:
    path = tmp_path / "base"
    world = World(tmp_path / "run", kind=mapped_from(path), keep=6)
    world.train(6, {3: kind_of_change(path)})
    world.check()
