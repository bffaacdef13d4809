"""Mistakes in loops of one's own are named, with the right code."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import brim
from brim.errors import SpecError
from brim.train.checks.backward_errors import explanation_of
from brim.train.context import spec_of_a_loner
from brim.train.entry import join
from brim.train.job import Job
from brim.train.state.optimization import Optimization
from brim.train.step import MicroBatch

DATA = TensorDataset(torch.arange(24.0).reshape(12, 2) / 24, torch.ones(12, 1))


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@dataclass(frozen=True)
class Named:
    """Stands in for a batch of a graph library."""

    features: Tensor


class DistributedDataParallel(nn.Module):
    """Stands in for torch's, which needs a process group."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class _FabricModule(nn.Module):
    """Stands in for that of Lightning Fabric, which wants its own backward pass."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class OwnWrapper(DistributedDataParallel):
    """A wrapper as libraries derive it."""


def refused(call: Callable[[], object]) -> SpecError:
    with pytest.raises(SpecError) as raised:
        call()
    assert raised.value.hint
    return raised.value


@pytest.fixture(autouse=True)
def _unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the end of the process of tests alone, which is no script."""
    monkeypatch.setattr(join, "_is_watched", True)


# brim.join ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "actual"),
    [
        (lambda net: (sgd(net), net), "an optimizer (SGD) in place of the model"),
        (lambda net: (nn.Linear, sgd(net)), "the class Linear in place of the model"),
        (lambda net: (None, sgd(net)), "None in place of the model"),
        (lambda net: ({"net": net}, sgd(net)), "an object of type dict in place of the model"),
        (lambda net: (net, None), "None in place of the optimizer"),
        (lambda net: (net, []), "no optimizer in place of the optimizer"),
        (lambda net: (net, torch.optim.SGD), "the class SGD in place of the optimizer"),
        (lambda net: (net, net.parameters()), "an object of type generator in place of the opt"),
        (
            lambda net: (net, torch.optim.lr_scheduler.StepLR(sgd(net), 1)),
            "an object of type StepLR in place of the optimizer",
        ),
        (
            lambda net: (DistributedDataParallel(net), sgd(net)),
            "a model in DistributedDataParallel",
        ),
        (lambda net: (OwnWrapper(net), sgd(net)), "a model in DistributedDataParallel"),
        (lambda net: (_FabricModule(net), sgd(net)), "a model in _FabricModule"),
        (lambda net: (nn.DataParallel(net), sgd(net)), "a model in DataParallel"),
        (
            lambda net: (nn.Sequential(nn.DataParallel(net)), sgd(net)),
            "a model in DataParallel, at '0'",
        ),
        (
            lambda net: ([nn.ReLU(), nn.ModuleDict({"a": nn.DataParallel(net)})], sgd(net)),
            "a model in DataParallel, at 'a'",
        ),
    ],
)
def test_wrong_arguments_of_join_are_named(
    arguments: Callable[[nn.Module], tuple[Any, Any]], actual: str
) -> None:
    assert refused(lambda: brim.join(*arguments(nn.Linear(2, 1)))).got.startswith(actual)


def test_an_optimizer_is_no_scheduler() -> None:
    net = nn.Linear(2, 1)
    with pytest.raises(SpecError, match="got a SGD, need a scheduler"):
        brim.join(net, sgd(net), scheduler=sgd(net))
    with pytest.raises(SpecError, match="got a DataLoader, need a scheduler"):
        brim.join(
            net, sgd(net), DataLoader(TensorDataset(torch.zeros(1)))
        )  # as others take their arguments


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        ({"WORLD_SIZE": "4", "RANK": "2", "MASTER_ADDR": "host"}, "torchrun"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "srun"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "mpirun"),
        ({"PMI_SIZE": "4"}, "mpirun"),
        ({"WORLD_SIZE": "1"}, ""),
        ({"WORLD_SIZE": "many"}, ""),
        ({"SLURM_NTASKS": "4"}, ""),  # of an allocation: `python loop.py` in it is one process
        ({}, ""),
    ],
)
def test_processes_of_another_launcher_are_refused(
    variables: dict[str, str], launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["loop.py"])
    net = nn.Linear(2, 1)
    if not launcher:
        brim.join(net, sgd(net))
        return
    wrong = refused(lambda: brim.join(net, sgd(net)))
    assert f"that {launcher} has started as one of 4" in wrong.got
    assert wrong.hint == "brim run --workers 4 -- python loop.py"


def test_only_the_main_thread_may_join(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[BaseException] = []
    monkeypatch.setattr(join, "_context_here", object)
    monkeypatch.setattr(join, "report", lambda _, error: reported.append(error))
    monkeypatch.setattr(join, "_joined", None)
    net = nn.Linear(2, 1)
    with ThreadPoolExecutor(1, "trainer") as threads:
        error = refused(lambda: threads.submit(brim.join, net, sgd(net)).result())
    assert "got a call in the thread 'trainer_0'" in str(error)
    assert reported == [error]


def test_processes_at_the_restart_level_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Linear(2, 1)
    monkeypatch.setenv("BRIM_WORLD_MAX", "2")
    monkeypatch.setattr("sys.argv", ["/code/loop.py"])
    wrong = refused(lambda: brim.join(net, sgd(net)))
    assert wrong.got.startswith("a command at the restart level")
    assert wrong.hint == "--no-restart -- python loop.py"
    monkeypatch.setenv("BRIM_WORLD_MAX", "1")  # a job of an array, such as a search, trains alone
    brim.join(net, sgd(net))


# job.step -----------------------------------------------------------------------------------------


def first_batch(
    body: Callable[[Job, Any, list[nn.Module], list[torch.optim.Optimizer]], object], networks: int
) -> None:
    """Compute the first batch of a job as a body does."""
    models: list[nn.Module] = [nn.Linear(2, 1) for _ in range(networks)]
    optimizers: list[torch.optim.Optimizer] = [sgd(model) for model in models]
    job = brim.join(models, optimizers, micro_batches=1)
    batches = job.batches(DATA, global_batch_size=4)
    try:
        body(job, next(batches), models, optimizers)
    finally:
        batches.close()


def two_losses(job: Job, batch: Any, models: list[nn.Module], _: object) -> None:
    job.step(functional.mse_loss(models[0](batch[0]), batch[1]))
    job.step(functional.mse_loss(models[0](batch[0]), batch[1] * 0))


def two_losses_of_one(job: Job, batch: Any, models: list[nn.Module], optimizers: list[Any]) -> None:
    for target in (batch[1], batch[1] * 0):
        job.step(functional.mse_loss(models[0](batch[0]), target), optimizer=optimizers[0])


def one_label_for_two(job: Job, batch: Any, models: list[nn.Module], optimizers: list[Any]) -> None:
    """DCGAN's `label.fill_(fake_label)`, once the two losses are added."""
    label = torch.ones_like(batch[1])
    real = functional.binary_cross_entropy(models[0](batch[0]).sigmoid(), label)
    label.fill_(0.0)
    fake = functional.binary_cross_entropy(models[0](batch[0]).sigmoid(), label)
    job.step(real + fake, optimizer=optimizers[0])


def one_graph_for_two(job: Job, batch: Any, models: list[nn.Module], optimizers: list[Any]) -> None:
    verdict = models[0](models[1](batch[0]).repeat(1, 2)).exp()
    job.step(verdict.mean(), optimizer=optimizers[0])
    job.step(-verdict.mean(), optimizer=optimizers[1])


@pytest.mark.parametrize(
    ("body", "networks", "actual", "hint"),
    [
        (two_losses, 1, "a second call for one batch", "add the losses: job.step("),
        (two_losses_of_one, 2, "a second loss of one optimizer", "add them: job.step("),
        (
            one_label_for_two,
            2,
            "a loss of which a tensor (FloatTensor of shape [4, 1]) was changed in place",
            "torch.ones_like(output)",
        ),
        (one_graph_for_two, 2, "a loss whose graph, or a part of it, an earlier", "for each"),
    ],
)
def test_losses_that_fit_no_batch_are_explained(
    body: Callable[..., object], networks: int, actual: str, hint: str
) -> None:
    wrong = refused(lambda: first_batch(body, networks))
    assert wrong.got.startswith(actual)
    assert hint in wrong.hint


def test_stale_hidden_states_are_explained() -> None:
    model = nn.Linear(2, 1)
    job = brim.join(model, sgd(model), micro_batches=1)
    hidden = torch.zeros(())

    def train() -> None:
        nonlocal hidden
        for inputs, _ in job.batches(DATA, global_batch_size=4):
            hidden = (hidden + model(inputs).mean()).exp()
            job.step(hidden)

    assert "job.carry carries a hidden state" in refused(train).hint


def test_other_backward_errors_are_unchanged() -> None:
    assert explanation_of(RuntimeError("of a kernel")) is None


def test_rates_in_tensors_are_compared_by_their_values() -> None:
    model = nn.Linear(2, 2)
    rate = torch.tensor(0.5)
    optimization = Optimization(model, [torch.optim.Adam(model.parameters(), lr=rate)])
    optimization.begin()
    optimization.check_rates()
    optimization.check_rates()
    optimization.optimizers[0].param_groups[0]["lr"].fill_(0.25)
    assert "'lr' of parameter group 0 changed" in refused(optimization.check_rates).got


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_scripted_networks_train() -> None:
    net = torch.jit.script(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    before = net.state_dict()["1.running_mean"].clone()
    spec = replace(spec_of_a_loner(0), micro_batches=2)
    job = Job(net, sgd(net), spec=spec, context=None)
    for batch in job.batches(DATA, global_batch_size=12, epochs=2):
        job.step((net(batch.inputs) - batch.target).square().mean())
    assert not torch.equal(net.state_dict()["1.running_mean"], before)


def squashed(x: Tensor) -> Tensor:
    return torch.tanh(x) * torch.sigmoid(x) / (1 + x * x)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_scripted_functions_round_alike_in_each_call() -> None:
    """A worker that has just started calls one for the first time, as geoopt's are in its loops."""
    torch._C._set_graph_executor_optimize(True)  # torch's own default
    net = nn.Linear(2, 1)
    join.join(net, sgd(net))
    scripted, gradients = torch.jit.script(squashed), []
    for _ in range(3):
        x = torch.linspace(-2, 2, 500).requires_grad_()
        scripted(x).square().sum().backward()
        assert x.grad is not None
        gradients.append(x.grad)
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)


class Searching(torch.optim.SGD):
    """An optimizer that computes the loss itself."""

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return closure()


class Sharpening(torch.optim.SGD):
    """One that does although its argument is optional, as SAM."""

    def step(self, closure: Any = None) -> Any:
        if closure is None:
            raise RuntimeError("Sharpening requires a closure")
        return closure()


@pytest.mark.parametrize("kind", [Searching, Sharpening])
def test_optimizers_with_closures_are_refused(kind: type[torch.optim.SGD]) -> None:
    net = nn.Linear(2, 1)
    error = refused(lambda: Optimization(net, [kind(net.parameters(), lr=0.1)]).step())
    assert f"got {kind.__name__}, which computes the loss again within a step" in str(error)


def test_refusal_names_other_arguments_of_step() -> None:
    class Measuring(torch.optim.SGD):
        def step(self, closure: Any = None, *, metrics: float) -> None:  # type: ignore[override]
            raise AssertionError(metrics)

    net = nn.Linear(2, 1)
    error = refused(lambda: Optimization(net, [Measuring(net.parameters(), lr=0.1)]))
    assert "got Measuring, whose step() needs 'metrics'" in str(error)


def test_steps_of_one_object_need_no_closure() -> None:
    """They may fill in an argument that the class requires."""
    net = nn.Linear(2, 1)
    optimizer = Searching(net.parameters(), lr=0.1)
    vars(optimizer)["step"] = partial(optimizer.step, lambda: None)
    Optimization(net, [optimizer]).step()
    wrapped = Searching(net.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(wrapped, 1)
    refused(lambda: Optimization(net, [wrapped]))


def test_losses_of_frozen_networks_stay_apart() -> None:
    frozen, other_network = nn.Linear(2, 2), nn.Linear(2, 2)
    of_frozen, of_other = sgd(frozen), sgd(other_network)
    frozen.requires_grad_(False)
    optimization = Optimization(nn.ModuleList([frozen, other_network]), [of_frozen, of_other])
    loss: Tensor = frozen(other_network(torch.ones(1, 2))).mean()
    optimization.backward(loss, 1.0, of_frozen)
    assert all(parameter.grad is None for parameter in other_network.parameters())
    optimization.backward(loss, 1.0, of_other)
    assert all(parameter.grad is not None for parameter in other_network.parameters())


def test_freezing_within_steps_gets_a_hint() -> None:
    model = nn.Linear(2, 1)
    optimization = Optimization(model, [sgd(model)])
    optimization.begin()
    model.requires_grad_(False)
    optimization.check_rates()
    model.requires_grad_(True)
    assert "leave it out" in refused(optimization.check_rates).hint


# job.batches --------------------------------------------------------------------------------------


def test_a_batch_is_like_that_of_a_loader() -> None:
    ids = torch.zeros(3, 2)
    pair, by_name = MicroBatch(ids, ids + 1), MicroBatch({"ids": ids}, None)
    inputs, target = pair
    assert (inputs is ids, target is pair[1], len(pair)) == (True, True, 2)
    assert (list(by_name), list(by_name.items()), len(by_name)) == (["ids"], [("ids", ids)], 1)
    assert dict(**by_name)["ids"] is by_name["ids"] is ids
    assert MicroBatch(Named(ids), None).features is ids
    assert copy.copy(by_name).inputs is by_name.inputs


def test_what_no_batch_has_is_named() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'input_ids': batch.inputs and"):
        _ = MicroBatch({"ids": 1}, None).input_ids
    with pytest.raises(AttributeError, match="a tuple here"):
        MicroBatch(1, 2).to("cpu")


def test_dataclass_helpers_take_a_batch() -> None:
    """As augmentations in a loop, and functions that move whatever they are given, do."""
    batch = MicroBatch(1, 2, {"state": 3})
    assert replace(batch, inputs=4) == MicroBatch(4, 2, {"state": 3})


# job.log and job.evaluate -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unnamed", "named", "hint"),
    [
        (("loss", 3), {}, "job.log(loss=3)"),
        (("loss", 3, 7), {}, "job.log(loss=3); brim knows the step"),
        (("train/loss", 0.5), {}, "job.log(**{'train/loss': 0.5})"),
        (({"loss": 3, "hits": 1},), {}, "job.log(**{'loss': 3, 'hits': 1})"),
        ((torch.ones(()),), {}, "job.log(loss=...)"),
        ((), {"loss": "low"}, "job.log(loss=float(value))"),
        ((), {"loss": None}, "job.log(loss=float(value))"),
        ((), {"loss": torch.ones(2)}, "job.log(loss=float(value))"),
    ],
)
def test_values_without_a_name_or_number_are_refused(
    unnamed: tuple[Any, ...], named: dict[str, Any], hint: str
) -> None:
    model = nn.Linear(2, 1)
    job = brim.join(model, sgd(model))
    assert refused(lambda: job.log(*unnamed, **named)).hint == hint
    job.log(loss=torch.ones(()), hits=True)
    assert job.metrics == {"loss": 1.0, "hits": 1.0}


@pytest.mark.parametrize(
    ("metrics", "actual"),
    [
        ({"half": lambda output, target: 0.5}, "<lambda> as 'half'"),
        ({"accuracy": brim.metrics.accuracy}, "accuracy as 'accuracy'"),
        ({"mean": torch.mean}, "mean as 'mean'"),
        ([brim.metrics.accuracy()], "a list"),
        (brim.metrics.accuracy(), "a brim._Mean"),
        (None, "None"),
    ],
)
def test_metrics_that_are_functions_are_refused(metrics: Any, actual: str) -> None:
    model = nn.Linear(2, 1)
    job = brim.join(model, sgd(model))
    wrong = refused(lambda: job.evaluate(DATA, metrics))
    assert (wrong.field, wrong.got) == ("job.evaluate", actual)


class Merging(nn.Linear):
    """Adds a matrix to its weight in eval mode, and takes it out again, as LoRA's layers do."""

    def __init__(self) -> None:
        super().__init__(2, 1)
        self.weight.requires_grad_(False)
        self.added = nn.Parameter(torch.full((1, 2), 1e8))  # beside which a small weight is rounded
        self.is_merged = False

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        if self.is_merged is mode:
            self.weight.data += -self.added.data if mode else self.added.data
            self.is_merged = not mode
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight if self.is_merged else self.weight + self.added
        return nn.functional.linear(x, weight, self.bias)


def test_modules_change_their_mode_themselves() -> None:
    merging, frozen = Merging(), nn.BatchNorm1d(1).eval()
    model = nn.Sequential(merging, nn.Sequential(frozen))
    weight = merging.weight.detach().clone()
    job = brim.join(model, sgd(model))
    seen = []
    handle = merging.register_forward_hook(lambda *_: seen.append(merging.is_merged))
    job.evaluate(DATA, {"mean": brim.metrics.mean_absolute_error()})
    handle.remove()
    assert set(seen) == {True}
    assert not merging.is_merged
    assert torch.equal(merging.weight, weight)
    assert [module.training for module in model.modules()] == [True, True, True, False]
