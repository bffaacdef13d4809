"""`brim.Embedding`: a plain module, and in a job the rows that its ids get by their
first update.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import brim
from brim.domain.job import JobSpec, WorkerRange
from brim.embeddings import embedding as embeddings
from brim.embeddings.keyed import Embedding, HeldRows, held_by, hold
from brim.embeddings.tables.keys import mix, unmix
from brim.errors import SpecError
from brim.train.job import Job
from brim.train.state.transfer import weights_sha256

FIELDS, DISTINCT, FACTOR = 5, 300, 0x1E3779B97F4A7C15
Make = Callable[[Any], torch.optim.Optimizer]


def ids_of(numbers: Tensor) -> Tensor:
    return (numbers * FACTOR) & ((1 << 63) - 1)


def numbers() -> Tensor:
    return (
        torch.rand(500, FIELDS, generator=torch.Generator().manual_seed(1)).pow(3) * DISTINCT
    ).long()


def data(ids: Tensor | None = None) -> TensorDataset:
    return TensorDataset(ids_of(numbers()) if ids is None else ids, (numbers()[:, 0] % 2).float())


class Net(nn.Module):
    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.rows: Any = embedding
        self.out = nn.Linear(8 * FIELDS, 1)

    def forward(self, ids: Tensor) -> Tensor:
        looked_up: Tensor = self.out(torch.tanh(self.rows(ids).flatten(1))).squeeze(1)
        return looked_up


def keyed(**options: Any) -> Net:
    torch.manual_seed(0)
    return Net(brim.Embedding(8, **{"limit": 1000, "scale": 0.3, **options}))


def compact(like: Net) -> Net:
    """The same network with an ordinary embedding, whose row `n` is that of the id that `n` stands
    for.
    """
    torch.manual_seed(1)
    net = Net(nn.Embedding(DISTINCT, 8))
    with torch.no_grad():
        net.rows.weight.copy_(like.rows(ids_of(torch.arange(DISTINCT))))
    net.out.load_state_dict(like.out.state_dict())
    return net


def trained(
    net: nn.Module,
    make: Make,
    samples: TensorDataset,
    *,
    epochs: int = 2,
    shuffle: bool = True,
    hook: Callable[[Job], None] | None = None,
    **options: Any,
) -> Job:
    spec = JobSpec(
        command=("loop.py",),
        parameters={},
        workers=WorkerRange.parse("1"),
        epochs=epochs,
        global_batch_size=64,
        **options,
    )
    job = Job(net, make(net.parameters()), spec=spec, context=None)
    for _ in job.epochs():
        for batch in job.batches(samples, shuffle=shuffle):
            job.step(functional.binary_cross_entropy_with_logits(net(batch.inputs), batch.target))
            if hook:
                hook(job)
    return job


# The module ---------------------------------------------------------------------------------------


def test_ids_of_any_shape_are_looked_up() -> None:
    embedding = brim.Embedding(4)
    ids = torch.tensor([[0, 5], [(1 << 63) - 1, 5]])
    rows = embedding(ids).detach()
    assert rows.shape == (2, 2, 4)
    assert torch.equal(rows[0, 1], rows[1, 1])
    assert len(torch.unique(rows.flatten(0, 1), dim=0)) == 3
    assert float(rows.abs().max()) < 0.01
    assert torch.equal(embedding(ids[0].int()), rows[0])
    assert embedding(torch.empty((3, 0), dtype=torch.int64)).shape == (3, 0, 4)
    assert embedding(torch.tensor(5)).shape == (4,)


def test_torchs_chance_decides_what_rows_start_with() -> None:
    torch.manual_seed(3)
    first, two = brim.Embedding(4), brim.Embedding(4)
    torch.manual_seed(3)
    seeded_again = brim.Embedding(4)
    ids = torch.arange(10)
    assert torch.equal(first(ids), seeded_again(ids))
    assert not torch.equal(first(ids), two(ids))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dim": 0}, "dim: got 0, need a whole number from 1"),
        (
            {"limit": None},
            "limit: got None, need a whole number from 1: the rows that there is room for",
        ),
        ({"limit": 1e6}, "limit: got 1000000.0"),
        ({"init": "ones"}, "init: got 'ones', need uniform, normal or zeros"),
        ({"admit_after": 0}, "admit_after: got 0"),
        ({"expire_after": -1}, "expire_after: got -1"),
        ({"dtype": torch.float16}, "dtype: got torch.float16"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=f"brim.Embedding: {words}"):
        brim.Embedding(**{"dim": 4, **options})


def test_a_negative_id_is_refused_by_its_name() -> None:
    with pytest.raises(SpecError, match="ids of 'user': got -3, need whole numbers from 0"):
        brim.Embedding(4, name="user")(torch.tensor([5, -3]))


def test_outside_of_a_job_it_has_no_gradient() -> None:
    loss = keyed()(ids_of(numbers())).sum()
    with pytest.raises(SpecError, match=r"got a gradient outside of a job, need job\.step"):
        loss.backward()


def test_copies_pickles_and_state_dicts_have_the_rows() -> None:
    net = keyed()
    trained(net, lambda weights: torch.optim.Adagrad(weights, lr=0.1), data())
    ids = torch.cat([ids_of(numbers()).flatten(), torch.arange(5)])  # the last have no row
    torch.manual_seed(7)
    loaded = Net(brim.Embedding(8, scale=0.3))
    loaded.load_state_dict(net.state_dict())
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), loaded):
        assert torch.equal(copied.rows(ids), net.rows(ids))
        assert weights_sha256(copied) == weights_sha256(net)
    state = net.rows.state_dict()
    assert torch.equal(net.rows(state["ids"]), state["weight"])
    assert sorted(state["ids"].tolist()) == sorted(ids_of(numbers().unique()).tolist())
    assert torch.equal(mix(state["ids"]), mix(state["ids"]).sort().values)


def test_a_state_that_does_not_fit_is_refused() -> None:
    with pytest.raises(RuntimeError, match="ids have rows of shape"):
        brim.Embedding(8).load_state_dict(
            brim.Embedding(4).state_dict() | {"weight": torch.zeros(3, 4)}
        )
    with pytest.raises(RuntimeError, match=r"Missing key.*ids"):
        brim.Embedding(8).load_state_dict({"weight": torch.zeros(3, 8), "seed": torch.tensor(1)})


# In a job -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda weights: torch.optim.SGD(weights, lr=0.3),
        lambda weights: torch.optim.Adagrad(weights, lr=0.1),
    ],
    ids=["sgd", "adagrad"],
)
@pytest.mark.parametrize("by_rows", [True, False])
def test_rows_equal_an_ordinary_embedding(
    make: Make, by_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "LARGE", 1 if by_rows else 1 << 30)
    net = keyed()
    plain = compact(net)
    trained(net, make, data())
    trained(plain, make, data(numbers()))
    assert torch.equal(net.out.weight, plain.out.weight)
    seen = numbers().unique()
    assert torch.equal(net.rows(ids_of(seen)), plain.rows.weight[seen])
    assert len(held_by(net.rows).keys) == len(seen)


def _lazily(net: Net, make: Make, samples: TensorDataset) -> None:
    """Train an ordinary embedding in one thread, one small optimizer per step with the state of its
    rows.
    """
    weight = net.rows.weight.detach()
    states: dict[str, Tensor] = {}
    step = torch.tensor(0.0)
    output_optimizer = make(net.out.parameters())
    for _ in range(2):
        for ids, target in _batches(samples):
            rows = nn.Parameter(weight[ids.unique()].clone())
            places = torch.searchsorted(ids.unique(), ids)
            output = net.out(torch.tanh(functional.embedding(places, rows).flatten(1))).squeeze(1)
            output_optimizer.zero_grad()
            functional.binary_cross_entropy_with_logits(output, target).backward()
            small = make([rows])
            state = {name: part[ids.unique()].clone() for name, part in states.items()}
            if state:
                small.state[rows] = {"step": step.clone(), **state}
            small.step()
            output_optimizer.step()
            step += 1
            weight[ids.unique()] = rows.detach()
            for name, part in small.state[rows].items():
                if isinstance(part, Tensor) and part.dim() == 2:
                    states.setdefault(name, torch.zeros_like(weight))[ids.unique()] = part


def _batches(samples: TensorDataset) -> Any:
    yield from (
        (ids, target) for ids, target in zip(*(t.split(64) for t in samples.tensors), strict=True)
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True),
        lambda weights: torch.optim.Adam(weights, lr=0.01, amsgrad=True),
        lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0.0),
        lambda weights: torch.optim.RMSprop(weights, lr=0.01, momentum=0.3, centered=True),
    ],
    ids=["momentum", "adam", "adamw", "rmsprop"],
)
def test_optimizers_touch_only_step_rows(make: Make) -> None:
    net = keyed()
    plain = compact(net)
    trained(net, make, data(), micro_batches=1, shuffle=False)
    _lazily(plain, make, data(numbers()))
    seen = numbers().unique()
    torch.testing.assert_close(
        net.rows(ids_of(seen)), plain.rows.weight[seen], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda weights: torch.optim.Adamax(weights), "Adamax, need SGD, Adagrad, Adam"),
        (lambda weights: torch.optim.AdamW(weights), "AdamW with weight_decay=0.01"),
        (
            lambda weights: torch.optim.SGD(weights, lr=1, momentum=0.9, dampening=0.5),
            "SGD with dampening=0.5",
        ),
        (
            lambda weights: torch.optim.SGD(list(weights)[1:], lr=1),
            "a weight that no optimizer has",
        ),
    ],
)
def test_optimizers_unable_by_rows_are_refused(make: Make, words: str) -> None:
    with pytest.raises(SpecError, match=f"embedding 'rows': got {words}"):
        trained(keyed(), make, data())


def test_evaluation_gives_nobody_a_row() -> None:
    net = keyed()

    def evaluate_after(job: Job) -> None:
        count_before = len(held_by(net.rows).keys)
        with torch.no_grad():
            net(torch.arange(10_000, 10_000 + FIELDS).unsqueeze(0))
        net(torch.arange(20_000, 20_000 + FIELDS).unsqueeze(0))  # nobody asks for its gradient
        assert len(held_by(net.rows).keys) == count_before

    trained(net, lambda weights: torch.optim.SGD(weights, lr=0.3), data(), hook=evaluate_after)
    assert len(held_by(net.rows).keys) == len(numbers().unique())


def test_frequent_ids_get_rows() -> None:
    net = keyed(admit_after=3)
    ids = ids_of(numbers()[:64])
    often, first = ids.unique(), net.rows(ids.unique()).detach().clone()
    moved = []

    def check_rows(job: Job) -> None:
        moved.append(not torch.equal(net.rows(often), first))
        assert len(held_by(net.rows).keys) == (len(often) if moved[-1] else 0)

    samples = TensorDataset(ids, torch.ones(64))
    trained(
        net,
        lambda weights: torch.optim.SGD(weights, lr=0.3),
        samples,
        epochs=4,
        micro_batches=1,
        hook=check_rows,
    )
    assert moved == [False, False, True, True]


def test_stale_rows_start_again() -> None:
    net = keyed(expire_after=2)
    once, rare_ids = ids_of(numbers()[:64]), ids_of(numbers()[64:128] + 1000)
    first = net.rows(once).detach().clone()
    presence = []

    def check_presence(job: Job) -> None:
        presence.append(not torch.equal(net.rows(once), first))

    samples = TensorDataset(
        torch.cat([once, rare_ids, rare_ids, rare_ids, rare_ids]), torch.ones(320)
    )
    adam = lambda weights: torch.optim.Adam(weights, lr=0.1)  # noqa: E731
    trained(net, adam, samples, epochs=1, micro_batches=1, shuffle=False, hook=check_presence)
    assert presence == [True, True, False, False, False]


def test_full_tables_report_once(capsys: pytest.CaptureFixture[str]) -> None:
    net = keyed(
        limit=1, name="user"
    )  # some hundred places: a partition has a few more than its share
    samples = data(ids_of(numbers() + torch.arange(500).unsqueeze(1) * 1000))
    trained(net, lambda weights: torch.optim.SGD(weights, lr=0.3), samples)
    words = [line for line in capsys.readouterr().err.splitlines() if "no room" in line]
    assert words == [
        "brim: embedding 'user' has no room for more rows: other ids stay as they start (see its "
        "limit)"
    ]
    assert len(held_by(net.rows).keys) == net.rows.rules.shape.all_places


def test_oversized_tables_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "available_bytes", lambda: 1 << 20)
    with pytest.raises(SpecError, match="limit=100000 of embedding 'rows': got tables of"):
        trained(keyed(limit=100_000), lambda weights: torch.optim.SGD(weights, lr=0.3), data())


def test_second_jobs_continue_with_rows() -> None:
    net = keyed()
    trained(net, lambda weights: torch.optim.SGD(weights, lr=0.3), data())
    rows_held = held_by(net.rows)
    trained(net, lambda weights: torch.optim.SGD(weights, lr=0.0), data())
    assert all(map(torch.equal, held_by(net.rows), rows_held))


def test_a_name_that_two_embeddings_have_is_refused() -> None:
    net = nn.ModuleList([brim.Embedding(2, name="users"), brim.Embedding(3, name="users")])
    with pytest.raises(SpecError, match=r"brim\.Embedding: name: got 'users' for 2 embeddings"):
        trained(net, lambda parameters: torch.optim.Adagrad(parameters, lr=0.1), data())


def test_a_module_can_be_given_rows() -> None:
    embedding: Embedding = brim.Embedding(2)
    keys = mix(torch.tensor([4, 9])).sort().values
    hold(embedding, HeldRows(keys, torch.tensor([[1.0, 2.0], [3.0, 4.0]])))
    assert embedding(unmix(keys)).tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (torch.tensor([1, 1]), "an id stands there twice"),
        (torch.tensor([1, -2]), "-2 is negative"),
        (torch.tensor([1.0, 2.0]), "float32 of shape"),
    ],
)
def test_impossible_ids_of_states_are_refused(ids: Tensor, words: str) -> None:
    embedding = brim.Embedding(2)
    state = {**embedding.state_dict(), "ids": ids, "weight": torch.ones(2, 2)}
    with pytest.raises(RuntimeError, match=words):
        embedding.load_state_dict(state)


def test_a_state_may_have_ids_of_32_bits() -> None:
    embedding = brim.Embedding(2)
    ids = torch.tensor([0, 1, 2], dtype=torch.int32)
    embedding.load_state_dict({**embedding.state_dict(), "ids": ids, "weight": torch.ones(3, 2)})
    assert torch.equal(embedding(ids), torch.ones(3, 2))


def test_best_rows_reload_after_the_job() -> None:
    net = keyed()
    trained(net, lambda parameters: torch.optim.Adagrad(parameters, lr=0.1), data())
    best = copy.deepcopy(net.state_dict())
    assert len(best["rows.ids"])
    net.load_state_dict(best)
    assert torch.equal(net.state_dict()["rows.weight"], best["rows.weight"])


def test_rows_are_converted_with_their_module_or_refused() -> None:
    embedding = brim.Embedding(2)
    hold(embedding, HeldRows(mix(torch.tensor([7])), torch.ones(1, 2)))
    assert embedding.double()(torch.tensor([7])).dtype is torch.float64
    with pytest.raises(SpecError, match="a conversion to float16"):
        embedding.half()


def test_frozen_embeddings_are_refused() -> None:
    net = keyed()
    net.rows.requires_grad_(False)
    with pytest.raises(SpecError, match=r"a brim\.Embedding that is frozen"):
        trained(net, lambda parameters: torch.optim.SGD(parameters, lr=0.1), data())


def test_inference_lookups_keep_later_gradients() -> None:
    net = keyed()
    spec = JobSpec(
        command=("loop.py",),
        parameters={},
        workers=WorkerRange.parse("1"),
        epochs=1,
        global_batch_size=64,
    )
    job = Job(net, torch.optim.SGD(net.parameters(), lr=0.1), spec=spec, context=None)
    for batch in job.batches(data()):
        with torch.inference_mode():
            net(batch.inputs)
        job.step(functional.binary_cross_entropy_with_logits(net(batch.inputs), batch.target))
    assert len(held_by(net.rows).keys)


# What an optimizer keeps of rows ------------------------------------------------------------------


def adam(net: Net) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=0.01)


def loop(net: Net, optimizer: torch.optim.Optimizer, *, epochs: int) -> None:
    spec = JobSpec(
        command=("loop.py",),
        parameters={},
        workers=WorkerRange.parse("1"),
        epochs=epochs,
        global_batch_size=64,
        micro_batches=1,
    )
    job = Job(net, optimizer, spec=spec, context=None)
    for batch in job.batches(data(), shuffle=False):
        job.step(functional.binary_cross_entropy_with_logits(net(batch.inputs), batch.target))


def test_optimizer_states_include_row_states() -> None:
    net = keyed()
    optimizer = adam(net)
    loop(net, optimizer, epochs=1)
    number = [id(parameter) for parameter in net.parameters()].index(id(net.rows.weight))
    row_states = optimizer.state_dict()["state"][number]
    assert row_states.keys() == {"step", "exp_avg", "exp_avg_sq"}
    assert row_states["exp_avg"].shape == net.rows.state_dict()["weight"].shape
    assert bool(row_states["exp_avg_sq"].any(1).all())


def test_training_resumes_exactly_from_state_dicts() -> None:
    whole = keyed()
    loop(whole, adam(whole), epochs=4)
    net = keyed()
    optimizer = adam(net)
    loop(net, optimizer, epochs=2)
    saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    net = keyed()
    optimizer = adam(net)
    net.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    loop(net, optimizer, epochs=2)
    assert weights_sha256(net) == weights_sha256(whole)


def test_an_optimizers_state_of_other_rows_is_refused() -> None:
    net = keyed()
    optimizer = adam(net)
    loop(net, optimizer, epochs=1)
    saved = copy.deepcopy(optimizer.state_dict())
    other_net = keyed()
    optimizer = adam(other_net)
    optimizer.load_state_dict(saved)
    with pytest.raises(
        SpecError, match="optimizer's state of embedding 'rows': got that of 298 rows"
    ):
        loop(other_net, optimizer, epochs=1)
