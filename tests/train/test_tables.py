"""Tables in shared memory: uncommitted writes of an owner are taken back, wherever it died."""

from __future__ import annotations

import copy
import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from brim.embeddings.embedding import Embeddings
from brim.embeddings.rows import GradientRows, OwnedRows
from brim.embeddings.tables import kernels
from brim.embeddings.tables.memory import TableMemory
from brim.embeddings.tables.table import Table
from brim.errors import EnvironmentFault, SpecError
from brim.train.job import Job
from train.test_embeddings import OPTIMIZERS, data, net, small_ones_too, spec

__all__ = ["small_ones_too"]

ROWS, DIM = 40, 4


@pytest.fixture
def descriptor() -> Iterator[int]:
    file = os.memfd_create("tables")
    yield file
    os.close(file)


def tables_in(descriptor: int) -> tuple[TableMemory, list[Table]]:
    tables = [
        Table("deep", (ROWS, DIM), torch.float32, ("sum",)),
        Table("wide", (ROWS, 1), torch.float64, ()),
    ]
    return TableMemory(tables, descriptor), tables


def filled(tables: list[Table]) -> None:
    torch.manual_seed(0)
    for table in tables:
        table.fill({name: torch.rand(table.shape, dtype=table.dtype) for name in table.names})


def content(tables: list[Table]) -> list[torch.Tensor]:
    return [part.clone() for table in tables for part in (*table.fields.values(), table.changed)]


def update(
    table: Table, ids: list[int], *, step: int, owner: int = 0, first_place: int = 0
) -> None:
    places = torch.tensor(ids, dtype=torch.int64)
    logged = table.log(places, step=step, owner=owner, at=first_place)
    table.write(places, {name: rows + step for name, rows in logged.items()}, step=step)


def test_late_comers_find_table_pages() -> None:
    """Page faults of its first step would keep all others waiting; and where nothing is, nothing is
    to be.
    """
    file = os.memfd_create("tables")
    table = Table("deep", (800_000, 16), torch.float32, ("sum",))
    memory = TableMemory([table], file)
    table.fill({name: torch.rand(table.shape) for name in table.names})
    memory.step = 7
    blocks, step = os.fstat(file).st_blocks, torch.arange(0, 800_000, 64)
    newcomer = Table("deep", (800_000, 16), torch.float32, ("sum",))
    late_memory = TableMemory([newcomer], file)
    assert os.fstat(file).st_blocks == blocks
    faults_before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for field in (newcomer.seen["weight"], *newcomer.fields.values()):
        field.index_select(0, step)
    for field in newcomer.fields.values():
        field.index_fill_(0, step, 1.0)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults_before
    os.close(file)
    assert late_memory.step == 7
    assert faults < 1000, (
        faults
    )  # of 37,500 pages that are touched, but for what tensors of the test took


WRITES = """
import sys, time, torch
from brim.embeddings.tables.memory import TableMemory
from brim.embeddings.tables.table import Table

memory = TableMemory([Table("deep", (40, 4), torch.float32, ())], int(sys.argv[1]))
print("there", flush=True)
time.sleep(600)
"""


def test_leaving_tables_waits_for_writers(descriptor: int) -> None:
    memory = TableMemory([Table("deep", (40, 4), torch.float32, ())], descriptor)
    memory.be_alone(0.0)
    memory = TableMemory([Table("deep", (40, 4), torch.float32, ())], descriptor)
    command = [sys.executable, "-c", WRITES, str(descriptor)]
    with subprocess.Popen(command, pass_fds=[descriptor], stdout=subprocess.PIPE) as writer_process:
        assert writer_process.stdout is not None
        assert writer_process.stdout.readline() == b"there\n"
        with pytest.raises(EnvironmentFault, match="another process may still write"):
            memory.be_alone(0.05)
        writer_process.kill()
        memory.be_alone(30.0)


def test_another_process_sees_what_was_written(descriptor: int) -> None:
    memory, tables = tables_in(descriptor)
    filled(tables)
    memory.step = 7
    second_memory, second_tables = tables_in(descriptor)
    assert second_memory.step == 7
    update(second_tables[0], [3, 9], step=8)
    assert all(map(torch.equal, content(tables), content(second_tables)))
    assert torch.equal(tables[0].seen["weight"], second_tables[0].fields["weight"])
    assert tables[0].changed.nonzero().flatten().tolist() == [3, 9]


def test_a_new_memory_has_nothing(descriptor: int) -> None:
    memory, _ = tables_in(descriptor)
    assert memory.step is None


class _Killed(Exception):
    pass


def _die_at(moment: int, patch: pytest.MonkeyPatch) -> None:
    """Raise half-way through one of the writes to rows that follow."""
    writes_left, chance = moment, random.Random(moment)

    def dying(rows: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> None:
        nonlocal writes_left
        writes_left -= 1
        if writes_left >= 0:
            kernels.put(rows, places, values)
            return
        count = chance.randrange(len(places) + 1)
        kernels.put(rows, places[:count], values[:count])
        raise _Killed

    patch.setattr("brim.embeddings.tables.table.put", dying)


def test_a_dead_owners_work_is_undone(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operation on memory is a moment to die at, also half-way through the rows that it
    writes.
    """
    memory, tables = tables_in(descriptor)
    filled(tables)
    update(tables[0], [1, 2], step=1)
    content_before = content(tables)
    deaths = 0
    for moment in range(1000):
        with monkeypatch.context() as patch:
            _die_at(moment, patch)
            try:
                update(tables[0], [2, 5, 30], step=2, owner=0, first_place=2)
                update(tables[1], [1, 7, 8], step=2, owner=0, first_place=1)
                update(tables[0], [31, 33], step=2, owner=1, first_place=31)
            except _Killed:
                deaths += 1
            else:
                assert deaths == moment > 5
                break
        memory.take_back(1)
        assert all(map(torch.equal, content(tables), content_before)), moment
    memory.take_back(2)  # it counts
    content_after = content(tables)
    assert not any(map(torch.equal, content_after[:1], content_before[:1]))
    memory.take_back(1)  # what counted once is never taken back
    assert all(map(torch.equal, content(tables), content_after))


def test_any_deaths_keep_committed_rows(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worlds of any size, owners that write in any order, die anywhere, and steps that count or do
    not.
    """
    deaths = taken_back = 0
    for seed in range(400):
        chance = random.Random(seed)
        memory, tables = tables_in(descriptor)
        filled(tables)
        expected = content(tables)
        for step in range(1, 7):
            while True:  # until it counts
                with monkeypatch.context() as patch:
                    _die_at(chance.randrange(30), patch)
                    for table, owner, (first, last) in _parts_of_a_step(seed * 10 + step, chance):
                        try:
                            update(
                                tables[table],
                                list(range(first, last, 2)),
                                step=step,
                                owner=owner,
                                first_place=first,
                            )
                        except _Killed:
                            deaths += 1
                            break
                    else:
                        if chance.random() < 0.8:
                            break
                if any((content(tables)[i] != expected[i]).any() for i in range(len(expected))):
                    taken_back += 1
                memory.take_back(step - 1)
                assert all(map(torch.equal, content(tables), expected)), seed
            for table in (0, 1):
                _add_to(expected, table, _ids_of_a_step(seed * 10 + step, table), step)
            assert all(map(torch.equal, content(tables), expected)), seed
    assert deaths > 1000
    assert taken_back > 1000


def _ids_of_a_step(seed: int, table: int) -> range:
    first, last = sorted(random.Random(seed * 2 + table).sample(range(ROWS), 2))
    return range(first, last, 2)


def _parts_of_a_step(seed: int, chance: random.Random) -> list[tuple[int, int, tuple[int, int]]]:
    """Of each table, the ids from one to before another that each owner has, in the order in which
    they write.
    """
    found = []
    for table in (0, 1):
        ids = _ids_of_a_step(seed, table)
        cuts = sorted(chance.choices(ids, k=chance.randrange(4)))
        bounds = [ids.start, *cuts, ids.stop]
        found += [(table, owner, part) for owner, part in enumerate(pairwise(bounds))]
    chance.shuffle(found)
    return found


def _add_to(expected: list[torch.Tensor], table: int, ids: range, step: int) -> None:
    fields = expected[:3] if table == 0 else expected[3:]
    for field in fields[:-1]:
        field[list(ids)] += step
    fields[-1][list(ids)] = step


def test_repeated_undone_steps_are_undone_again(
    descriptor: int,
) -> None:
    memory, tables = tables_in(descriptor)
    filled(tables)
    content_before = content(tables)
    for _ in range(3):
        update(tables[0], [4, 6], step=1)
        memory.take_back(0)
    assert all(map(torch.equal, content(tables), content_before))


def test_rowless_owners_hide_no_log(descriptor: int) -> None:
    """Beside servers, workers own nothing; the common state of their optimizers goes on all the same."""
    models = [net(), net()]
    optimizers = [torch.optim.Adagrad(model.parameters(), lr=0.1) for model in models]
    server, worker = (
        Embeddings(model, [optimizer], spec())
        for model, optimizer in zip(models, optimizers, strict=True)
    )
    server.open(descriptor)
    server.start(0)
    server.show()
    worker.open(descriptor)
    worker.show()
    weights_before = [table.fields["weight"].clone() for table in server.tables]
    rows = [
        GradientRows(torch.tensor([2, 5]), torch.ones(2, table.shape[1])) for table in server.tables
    ]
    server.update([OwnedRows(row.copy(), owner=0, start=2) for row in rows], step=1)
    no_rows = [
        OwnedRows(GradientRows(row.ids[:0], row.values[:0]), owner=0, start=ROWS, owners=0)
        for row in rows
    ]
    worker.update(no_rows, step=1)
    assert not any(
        torch.equal(table.fields["weight"], old)
        for table, old in zip(server.tables, weights_before, strict=True)
    )
    server.take_back(0)
    for table, old in zip(server.tables, weights_before, strict=True):
        assert torch.equal(table.fields["weight"], old)
    worker.settle()
    state = optimizers[1].state[models[1].table.weight]
    assert state["step"] == 1


def test_user_writes_are_private_and_seen(descriptor: int) -> None:
    memory, tables = tables_in(descriptor)
    filled(tables)
    assert not memory.is_written_to
    tables[0].seen["weight"].sum()
    written = [memory.is_written_to]
    content_before = content(tables)
    tables[0].seen["weight"][5] = 1.0
    written.append(memory.is_written_to)
    assert written == [False, True]
    assert all(map(torch.equal, content(tables), content_before))


def test_manually_changed_weights_are_refused() -> None:
    model = net()
    job = Job(model, OPTIMIZERS["adagrad"](model.parameters()), spec=spec(), context=None)

    def loop() -> None:
        for _ in job.epochs():
            for batch in job.batches(data()):
                job.step(
                    functional.binary_cross_entropy_with_logits(model(batch.inputs), batch.target)
                )
            model.table.weight.data.clamp_(-0.01, 0.01)

    with pytest.raises(SpecError, match=r"table.weight.*changed by hand"):
        loop()


def test_weights_belong_to_the_script_afterwards() -> None:
    model = net()
    job = Job(model, OPTIMIZERS["adagrad"](model.parameters()), spec=spec(), context=None)
    for batch in job.batches(data()):
        job.step(functional.binary_cross_entropy_with_logits(model(batch.inputs), batch.target))
    copied = copy.deepcopy(model)
    with torch.no_grad():
        model.table.weight.mul_(2)
    assert torch.equal(model.table.weight, copied.table.weight * 2)


def test_missing_memory_is_reported(descriptor: int) -> None:
    table = Table("huge", (1 << 42, 64), torch.float32, ())
    with pytest.raises(EnvironmentFault, match="no memory for embeddings"):
        TableMemory([table], descriptor)
