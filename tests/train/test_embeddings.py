"""Embeddings trained by rows end with the bits of the dense way; others are left dense, or refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from brim.domain.job import JobSpec, WorkerRange
from brim.embeddings import embedding as embeddings
from brim.errors import SpecError
from brim.models import WideDeep
from brim.train.job import Job
from brim.train.state.transfer import weights_sha256

ROWS, FIELDS = 300, 5
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.3),
    "sgd-foreach": lambda parameters: torch.optim.SGD(
        parameters, lr=0.3, foreach=True, maximize=False
    ),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    "adagrad-decay": lambda parameters: torch.optim.Adagrad(
        parameters, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.2
    ),
}


class Net(nn.Module):
    """Looks up the same ids in two tables, one of them twice, and skips a padding id."""

    def __init__(self, *, bag: bool = False, sparse: bool = False) -> None:
        super().__init__()
        options: dict[str, Any] = {"padding_idx": 3, "sparse": sparse}
        self.table = (
            nn.EmbeddingBag(ROWS, 8, mode="mean", **options)
            if bag
            else nn.Embedding(ROWS, 8, **options)
        )
        self.wide = nn.Embedding(ROWS, 1, sparse=sparse)
        self.out = nn.Linear(8 if bag else 8 * FIELDS, 1)

    def forward(self, ids: Tensor) -> Tensor:
        deep: Tensor = self.out(torch.tanh(self.table(ids).flatten(1))).squeeze(1)
        wide: Tensor = (
            self.wide(ids).sum((1, 2))
            + self.wide(ids[:, :1]).sum((1, 2))
            + self.wide(ids[:, 1:2]).sum((1, 2))
        )
        return deep + wide


def data(dtype: torch.dtype = torch.int64) -> TensorDataset:
    torch.manual_seed(1)
    ids = (torch.rand(500, FIELDS).pow(3) * ROWS).to(dtype)
    return TensorDataset(ids, (ids[:, 0] % 2).float())


def spec(**options: Any) -> JobSpec:
    return JobSpec(
        command=("loop.py",),
        parameters={},
        workers=WorkerRange.parse("1"),
        epochs=2,
        global_batch_size=64,
        **options,
    )


def trained(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    samples: TensorDataset | None = None,
    **options: Any,
) -> tuple[Job, float]:
    job, loss = Job(model, optimizer, spec=spec(**options), context=None), 0.0
    for _ in job.epochs():
        for batch in job.batches(samples or data()):
            output = model(batch.inputs)
            loss = (
                job.step(functional.binary_cross_entropy_with_logits(output, batch.target)) or loss
            )
    return job, loss


def net(**options: bool) -> Net:
    torch.manual_seed(0)
    return Net(**options)


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "LARGE", 1)


@pytest.mark.parametrize("bag", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_sparse_training_equals_dense_training(
    bag: bool, optimizer: str, dtype: torch.dtype
) -> None:
    ends = []
    for way in ("auto", "dense"):
        model = net(bag=bag)
        row_optimizer = OPTIMIZERS[optimizer](model.parameters())
        job, loss = trained(model, row_optimizer, samples=data(dtype), embeddings=way)
        assert bool(job.parts.embeddings.names) is (way == "auto")
        ends.append((weights_sha256(model), loss, row_optimizer.state_dict()["state"]))
    (sha, loss, state), (dense_sha, dense_loss, dense_state) = ends
    assert sha == dense_sha
    assert loss == dense_loss
    assert state.keys() == dense_state.keys()
    for index, parts in state.items():
        for key, part in parts.items():
            assert part is dense_state[index][key] or torch.equal(part, dense_state[index][key]), (
                index,
                key,
            )


def test_frequency_scaled_gradients_equal_dense_ones() -> None:
    ends = []
    for way in ("auto", "dense"):
        model = net()
        model.table.scale_grad_by_freq = True
        trained(model, OPTIMIZERS["adagrad"](model.parameters()), embeddings=way)
        ends.append(weights_sha256(model))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("id", [ROWS, -1])
def test_unknown_ids_are_errors(id: int) -> None:
    model = net()
    job = Job(model, OPTIMIZERS["sgd"](model.parameters()), spec=spec(), context=None)
    next(job.batches(data()))
    with pytest.raises(IndexError, match="out of range"):
        model.table(torch.tensor([[1, id]]))


def test_models_may_declare_their_own_lookup() -> None:
    ends = []
    for way in ("auto", "dense"):
        torch.manual_seed(0)
        model = WideDeep(ROWS, FIELDS, dim=4)
        job = Job(
            model,
            torch.optim.Adagrad(model.parameters(), lr=0.1),
            spec=spec(embeddings=way),
            context=None,
        )
        for batch in job.batches(data()):
            output = model({"ids": batch.inputs})
            job.step(functional.binary_cross_entropy_with_logits(output, batch.target))
        ends.append(weights_sha256(model))
        assert len(job.parts.embeddings.names) == (2 if way == "auto" else 0)
    assert ends[0] == ends[1]


class _Doubled(nn.Embedding):
    """Looks up and does nothing else with the weight; its result is another thing."""

    by_rows = True

    def forward(self, input: Tensor) -> Tensor:
        return 2 * functional.embedding(input, self.weight)


def test_custom_forwards_run_in_training() -> None:
    ends = []
    for way in ("auto", "dense"):
        model = net()
        model.wide = _Doubled(ROWS, 1)
        nn.init.ones_(model.wide.weight)
        trained(model, OPTIMIZERS["adagrad"](model.parameters()), embeddings=way)
        ends.append(weights_sha256(model))
    assert ends[0] == ends[1]


def test_single_ids_are_looked_up_like_torch() -> None:
    model = net()
    job = Job(model, OPTIMIZERS["sgd"](model.parameters()), spec=spec(), context=None)
    row_before = model.table.weight.detach()[7].clone()
    for batch in job.batches(data()):
        row = model.table(torch.tensor(7))
        assert torch.equal(row, row_before)
        job.step(row.sum() + 0 * model(batch.inputs).sum())
        break
    assert row.shape == (8,)


def test_ids_changed_after_lookup_are_errors() -> None:
    model = net()
    job = Job(model, OPTIMIZERS["sgd"](model.parameters()), spec=spec(), context=None)
    ids = torch.tensor([1, 2])
    batches = job.batches(data())
    next(batches)
    loss = model.table(ids).sum()
    ids.fill_(7)
    with pytest.raises(SpecError, match="was changed in place after it was computed"):
        job.step(loss)


def test_sparse_adam_does_what_torch_does_with_it() -> None:
    model, plain = net(sparse=True), net(sparse=True)
    del model.out, plain.out
    model.forward = plain.forward = None  # type: ignore[assignment,method-assign]

    def output(network: Net, ids: Tensor) -> Tensor:
        found: Tensor = network.table(ids).sum((1, 2)) + network.wide(ids).sum((1, 2))
        return found

    job = Job(
        model,
        torch.optim.SparseAdam(model.parameters(), lr=0.1),
        spec=spec(micro_batches=1),
        context=None,
    )
    optimizer = torch.optim.SparseAdam(plain.parameters(), lr=0.1)
    for batch in job.batches(data()):
        for network in (model, plain):
            loss = functional.binary_cross_entropy_with_logits(
                output(network, batch.inputs), batch.target
            )
            if network is model:
                job.step(loss)
            else:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, dict(plain.named_parameters())[name])


def test_reused_memory_of_other_type_is_looked_up() -> None:
    model = net(bag=True)
    job = Job(model, OPTIMIZERS["sgd"](model.parameters()), spec=spec(), context=None)
    ids = torch.tensor([1, 2, 2])
    assert job.parts.embeddings.distinct(ids)[1].dtype is torch.int64
    ids.data = ids.int()  # the same object, the same values
    assert job.parts.embeddings.distinct(ids)[1].dtype is torch.int32


@pytest.mark.parametrize("delay", [1, 3])
def test_delays_apply_earlier_gradients(delay: int) -> None:
    torch.manual_seed(0)
    model = nn.Embedding(ROWS, 4, sparse=True)
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    job = Job(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        spec=spec(micro_batches=1, delay=delay),
        context=None,
    )
    waiting: list[Tensor] = []
    for batch in job.batches(data()):
        losses = [
            functional.mse_loss(network(batch.inputs).sum((1, 2)), batch.target)
            for network in (model, plain)
        ]
        torch.testing.assert_close(*losses)
        job.step(losses[0])
        (gradient,) = torch.autograd.grad(losses[1], list(plain.parameters()))
        waiting.append(gradient)
        if len(waiting) > delay:
            plain.weight.grad = waiting.pop(0)
            optimizer.step()
    torch.testing.assert_close(model.weight, plain.weight)


def test_a_delay_without_a_table_is_refused() -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(SpecError, match=r"--delay: got 2 for a model without an embedding"):
        Job(model, torch.optim.SGD(model.parameters(), lr=0.1), spec=spec(delay=2), context=None)


def test_unread_rows_stay_unchanged() -> None:
    model = net()
    weights_before = model.table.weight.detach().clone()
    trained(model, OPTIMIZERS["adagrad"](model.parameters()))
    ids = data().tensors[0]
    used = torch.zeros(ROWS, dtype=torch.bool)
    used[ids.unique()] = True
    used[3] = False  # padding
    changed = (model.table.weight != weights_before).any(1)
    assert torch.equal(changed, used)


def test_several_optimizers_each_reach_their_own_tables() -> None:
    ends = []
    for way in ("auto", "dense"):
        torch.manual_seed(0)
        first_embedding, two = nn.Embedding(ROWS, 1), nn.Embedding(ROWS, 1)
        first, second = (
            torch.optim.SGD(embedding.parameters(), lr=0.3) for embedding in (first_embedding, two)
        )
        job = Job([first_embedding, two], [first, second], spec=spec(embeddings=way), context=None)
        for batch in job.batches(data()):
            a, b = (embedding(batch.inputs).sum((1, 2)) for embedding in (first_embedding, two))
            job.step(functional.mse_loss(a + b, batch.target), optimizer=first)
            a, b = (embedding(batch.inputs).sum((1, 2)) for embedding in (first_embedding, two))
            job.step(functional.mse_loss(a - b, batch.target), optimizer=second)
        ends.append(weights_sha256(nn.ModuleList([first_embedding, two])))
    assert ends[0] == ends[1]


# The modules --------------------------------------------------------------------------------------


def test_modules_keep_classes_and_copies_are_plain() -> None:
    model = net()
    class_before, ids = type(model.table), torch.tensor([[1, 2, 3, 4, 5]])
    job = Job(model, OPTIMIZERS["sgd"](model.parameters()), spec=spec(), context=None)
    for _ in job.epochs():
        assert type(model.table) is not class_before
        assert repr(model) == repr(net())
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model.table))):
            assert "_ByRows" not in str([type(module).__mro__ for module in copied.modules()])
        copied = copy.deepcopy(model)
        copied(ids).sum().backward()
        assert copied.table.weight.grad is not None
        with torch.no_grad():
            assert torch.equal(model(ids), copied(ids))
        for batch in job.batches(data()):
            job.step(functional.mse_loss(model(batch.inputs), batch.target))
    assert type(model.table) is class_before
    model(ids).sum().backward()
    assert model.table.weight.grad is not None


def test_failed_loops_leave_plain_modules() -> None:
    model = net()
    weights_before = model.table.weight.detach().clone()

    def fail() -> None:
        job = Job(model, OPTIMIZERS["sgd"](model.parameters()), spec=spec(), context=None)
        for batch in job.batches(data()):
            job.step(functional.mse_loss(model(batch.inputs), batch.target))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert type(model.table) is nn.Embedding
    job, _ = trained(model, OPTIMIZERS["sgd"](model.parameters()))
    assert job.parts.embeddings.names == ["table.weight", "wide.weight"]
    assert not torch.equal(model.table.weight, weights_before)


def test_lookups_by_other_weights_are_untouched() -> None:
    model = net()
    job = Job(model, OPTIMIZERS["sgd"](model.parameters()), spec=spec(), context=None)
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    for batch in job.batches(data()):
        zeros = {"weight": torch.zeros_like(model.table.weight)}
        assert not functional_call(model.table, zeros, (ids,)).any()
        assert model.table(input=ids).shape == (1, 5, 8)
        job.step(functional.mse_loss(model(batch.inputs), batch.target))
        job.stop()


# What is left dense, and what is refused ----------------------------------------------------------


class _Shifted(nn.Embedding):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward((input + 1) % ROWS)


def _with_a_forward_of_its_own(model: Net) -> Net:
    model.table, wide = _Shifted(ROWS, 8), model.wide
    wide.forward = lambda input: functional.embedding(input, wide.weight)  # type: ignore[method-assign]
    return model


def _tied(model: Net) -> Net:
    model.tied = nn.Linear(8, ROWS, bias=False)
    model.tied.weight = model.table.weight
    return model


@pytest.mark.parametrize(
    ("make", "optimizer", "options"),
    [
        (net, lambda parameters: torch.optim.Adam(parameters), {}),
        (net, lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), {}),
        (net, lambda parameters: torch.optim.Adagrad(parameters, weight_decay=1e-3), {}),
        (net, OPTIMIZERS["sgd"], {"clip_norm": 1.0}),
        (net, OPTIMIZERS["sgd"], {"embeddings": "dense"}),
        (net, lambda parameters: torch.optim.Adagrad(parameters, eps=0.0), {}),
        (lambda: net().bfloat16(), OPTIMIZERS["sgd"], {}),
        (lambda: _with_a_forward_of_its_own(net()), OPTIMIZERS["sgd"], {}),
    ],
)
def test_what_would_change_the_bits_stays_dense(
    make: Any, optimizer: Any, options: dict[str, Any]
) -> None:
    model = make()
    job = Job(model, optimizer(model.parameters()), spec=spec(**options), context=None)
    assert job.parts.embeddings.names == []


def test_a_weight_that_another_module_uses_stays_dense() -> None:
    model = _tied(net())
    job = Job(model, OPTIMIZERS["sgd"](model.parameters()), spec=spec(), context=None)
    assert job.parts.embeddings.names == ["wide.weight"]


def test_small_embeddings_stay_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "LARGE", ROWS * 8)
    model = net()
    model.other = nn.Embedding(ROWS - 1, 8)
    job = Job(model, OPTIMIZERS["sgd"](model.parameters()), spec=spec(), context=None)
    # Of as many rows as a large one: such embeddings are mostly asked for the same ids.
    assert job.parts.embeddings.names == ["table.weight", "wide.weight"]


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (torch.optim.Adam, "Adam, which moves rows that have no gradient"),
        (
            lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
            "SGD with momentum=0.9",
        ),
    ],
)
def test_sparse_optimizers_moving_all_rows_are_refused(optimizer: Any, words: str) -> None:
    model = net(sparse=True)
    with pytest.raises(SpecError, match=f"embedding 'table': got sparse=True, and {words}"):
        Job(model, optimizer(model.parameters()), spec=spec(), context=None)


def test_sparse_with_torch_distributed_is_refused() -> None:
    model = net(sparse=True)
    with pytest.raises(SpecError, match="--transport distributed"):
        Job(
            model,
            OPTIMIZERS["sgd"](model.parameters()),
            spec=spec(transport="distributed"),
            context=None,
        )


def _trained_with(loss_of: Callable[[Net, Any], Tensor], way: str, **options: Any) -> str:
    model = net()
    job = Job(
        model,
        OPTIMIZERS["adagrad"](model.parameters()),
        spec=spec(embeddings=way, **options),
        context=None,
    )
    for batch in job.batches(data()):
        job.step(loss_of(model, batch))
    return weights_sha256(model)


def _with_penalty(model: Net, batch: Any) -> Tensor:
    loss = functional.mse_loss(model(batch.inputs), batch.target)
    return loss + 0.1 * model.table.weight.square().mean()


def _checkpointed(model: Net, batch: Any) -> Tensor:
    outputs = [
        checkpoint(model, (batch.inputs + shift) % ROWS, use_reentrant=False) for shift in range(3)
    ]
    return functional.mse_loss(sum(outputs), batch.target)


def _checkpointed_reentrantly(model: Net, batch: Any) -> Tensor:
    grad = torch.zeros(
        (), requires_grad=True
    )  # a reentrant checkpoint needs an input that wants one

    def run(ids: Tensor, _: Tensor) -> Tensor:
        found: Tensor = model(ids)
        return found

    outputs = [
        checkpoint(run, (batch.inputs + shift) % ROWS, grad, use_reentrant=True)
        for shift in range(4)
    ]
    return functional.mse_loss(sum(outputs) + model(batch.inputs), batch.target)


@pytest.mark.parametrize("loss_of", [_with_penalty, _checkpointed, _checkpointed_reentrantly])
def test_unusual_gradient_paths_equal_dense_ones(loss_of: Callable[[Net, Any], Tensor]) -> None:
    assert _trained_with(loss_of, "auto") == _trained_with(loss_of, "dense")


def test_gradients_outside_steps_are_refused() -> None:
    model = net()
    job = Job(model, OPTIMIZERS["sgd"](model.parameters()), spec=spec(), context=None)
    for batch in job.batches(data()):
        loss = functional.mse_loss(model(batch.inputs), batch.target)
        with pytest.raises(SpecError, match=r"outside of job\.step(.|\n)*--embeddings dense"):
            torch.autograd.grad(
                loss, list(model.parameters()), allow_unused=True, retain_graph=True
            )
        job.step(loss)
        job.stop()


def test_schedulers_and_loaded_states_change_row_rates() -> None:
    ends = []
    for way in ("auto", "dense"):
        model = net()
        optimizer = OPTIMIZERS["adagrad"](model.parameters())
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        job = Job(model, optimizer, spec=spec(embeddings=way), context=None, scheduler=scheduler)
        for epoch in job.epochs():
            for batch in job.batches(data()):
                job.step(functional.mse_loss(model(batch.inputs), batch.target))
            if epoch == 0:
                job.parts.optimization.put(copy.deepcopy(job.parts.optimization.get()))
        ends.append(weights_sha256(model))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("moment", ["before", "later"])
def test_optimizer_hooks_see_gradients_or_are_refused(moment: str) -> None:
    model = net()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    if moment == "before":
        optimizer.register_step_post_hook(lambda *_: None)
    job = Job(model, optimizer, spec=spec(micro_batches=1), context=None)
    assert bool(job.parts.embeddings.names) is (moment == "later")
    if moment == "later":
        optimizer.register_step_post_hook(lambda *_: None)
        batch = next(iter(job.batches(data())))
        with pytest.raises(SpecError, match="a hook on SGD"):
            job.step(functional.mse_loss(model(batch.inputs), batch.target))


def test_momentum_turned_on_later_is_refused() -> None:
    model = net()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    job = Job(model, optimizer, spec=spec(micro_batches=1), context=None)

    def loop() -> None:
        for batch in job.batches(data()):
            job.step(functional.mse_loss(model(batch.inputs), batch.target))
            optimizer.param_groups[0]["momentum"] = 0.5

    with pytest.raises(SpecError, match=r"SGD with momentum=0\.5"):
        loop()
    assert job.committed == 1
