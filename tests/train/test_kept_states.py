"""State of networks and optimizers beside weights is carried, or refused by name in the first step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

from brim.data.batches import fetch
from brim.data.repeatable import digest_of, is_same
from brim.errors import SpecError
from brim.train.checks.attributes import Attributes
from brim.train.context import spec_of_a_loner
from brim.train.job import Job
from brim.train.round import _comparable
from brim.train.state.optimization import Optimization

ROWS = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(ROWS, ROWS.sum(1))


def a_job(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, micro_batches: int = 8
) -> Job:
    optimizer_used = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    spec = replace(spec_of_a_loner(0), micro_batches=micro_batches)
    return Job(model, optimizer_used, spec=spec, context=None)


def train(job: Job, after_step: Callable[[], None] = lambda: None, *, epochs: int = 1) -> None:
    for _ in job.epochs(epochs):
        for batch in job.batches(DATA, global_batch_size=16):
            if job.step(job.model(batch.inputs).square().mean()) is not None:
                after_step()


class Net(nn.Module):
    """A line, before which `touch` may do something."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.line = nn.Linear(4, 1)
        for name, value in attributes.items():
            setattr(self, name, value)

    def touch(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.line(self.touch(x))
        return found


# Attributes ---------------------------------------------------------------------------------------


class Caching(Net):
    size: int | None
    is_built: bool

    def touch(self, x: Tensor) -> Tensor:
        if self.size is None:
            self.size, self.is_built = x.shape[1], True
        return x


def test_an_attribute_set_once_is_carried() -> None:
    model = Caching(size=None, is_built=False)
    job = a_job(model)
    train(job)
    newcomer = a_job(heir := Caching(size=None, is_built=False))
    assert job.parts.state.digests() != newcomer.parts.state.digests()
    newcomer.parts.state.put(job.parts.state.get())
    assert heir.size == 4
    assert heir.is_built is True
    assert job.parts.state.digests() == newcomer.parts.state.digests()


@pytest.mark.parametrize(
    ("start", "values"),
    [(None, [1, 2]), (None, [1, None]), (False, [True, False]), (0, [1]), ([], [[1]]), (None, [1, 1.0])],
)  # fmt: skip
def test_an_attribute_that_changes_again_is_refused(start: Any, values: list[Any]) -> None:
    model = nn.Linear(2, 1)
    model.seen = start
    attributes = Attributes(model)
    for value in values[:-1]:
        model.seen = value
        attributes.check()
    model.seen = values[-1]
    with pytest.raises(SpecError, match="model attribute 'seen'"):
        attributes.check()


class Noting(Net):
    """Copies its notes of the micro-batch before and writes its own over them, as Reformer does."""

    notes: dict[str, Tensor]
    reads: bool

    def touch(self, x: Tensor) -> Tensor:
        if self.reads and self.notes:
            x = x + self.notes["mean"]
        self.notes = {**self.notes, "mean": x.detach().mean(0)}
        return x + self.notes["mean"]


def test_a_dict_that_is_written_over_passes() -> None:
    train(a_job(Noting(notes={}, reads=False)))


def test_reading_another_batchs_note_is_refused() -> None:
    with pytest.raises(SpecError, match=r"attribute \"notes\['mean'\]\": got a forward pass"):
        train(a_job(Noting(notes={}, reads=True)))


class Heated(Net):
    temperature: float
    steps: list[int]

    def __init__(self) -> None:
        super().__init__(temperature=1.0, steps=[])


class CountingPasses(Net):
    calls: int

    def touch(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


def test_an_attribute_set_between_steps_is_carried() -> None:
    model = Heated()
    job = a_job(model)

    def cool() -> None:
        model.temperature *= 0.5
        model.steps.append(job.committed)

    train(job, cool)
    newcomer = a_job(heir := Heated())
    assert job.parts.state.digests() != newcomer.parts.state.digests()
    newcomer.parts.state.put(job.parts.state.get())
    assert heir.temperature == 0.5**4
    assert heir.steps == [1, 2, 3, 4]
    assert job.parts.state.digests() == newcomer.parts.state.digests()
    newcomer.parts.state.put(a_job(Heated()).parts.state.get())
    assert heir.temperature == 1.0


def test_a_number_of_numpys_is_carried() -> None:
    model = Heated()
    job = a_job(model)

    def cool() -> None:
        model.temperature = np.maximum(model.temperature * np.exp(-0.5), 0.2)

    train(job, cool)
    newcomer = a_job(heir := Heated())
    newcomer.parts.state.put(job.parts.state.get())
    assert heir.temperature == model.temperature == 0.2
    assert type(heir.temperature) is np.float64
    assert job.parts.state.digests() == newcomer.parts.state.digests()


def test_counting_passes_by_numpy_is_refused() -> None:
    with pytest.raises(SpecError, match="model attribute 'calls'"):
        train(a_job(CountingPasses(calls=np.int64(0))))


@pytest.mark.parametrize("micro_batches", [1, 8])
def test_an_attribute_set_before_each_pass_stays(micro_batches: int) -> None:
    model = Heated()
    job = a_job(model, micro_batches=micro_batches)
    for _ in job.epochs(1):
        for batch in job.batches(DATA, global_batch_size=16):
            model.temperature = 0.5**job.committed
            job.step(model(batch.inputs).square().mean() * model.temperature)
    assert model.temperature == 0.5**3


@pytest.mark.parametrize(("micro_batches", "count"), [(1, 0), (8, 1)])
def test_an_attribute_counting_passes_is_refused(micro_batches: int, count: int) -> None:
    words = rf"'calls': got {count + 1}, which was {count} before.*\n.*job.committed"
    with pytest.raises(SpecError, match=words):
        train(a_job(CountingPasses(calls=0), micro_batches=micro_batches))
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_attributes_are_compared_where_all_have_set_them() -> None:
    first_digests = {
        "model attribute 'net.size'": b"1",
        "model attribute 'net.wide'": b"1",
        "step": b"1",
    }
    second_digests = {"model attribute 'net.size'": b"2", "step": b"1"}
    assert _comparable([first_digests, second_digests]) == [
        {"model attribute 'net.size'": b"1", "step": b"1"},
        {"model attribute 'net.size'": b"2", "step": b"1"},
    ]


def test_a_metric_of_torchmetrics_is_refused_by_name() -> None:
    accuracy = pytest.importorskip("torchmetrics").MeanMetric()
    model = Net()
    model.mean = accuracy
    model.touch = lambda x: (accuracy.update(x.detach()), x)[1]  # type: ignore[method-assign]
    with pytest.raises(SpecError, match=r"'mean': got torchmetrics' MeanMetric.*\n.*job.evaluate"):
        train(a_job(model))


# Buffers ------------------------------------------------------------------------------------------


def test_a_buffer_changed_between_steps_stays_changed() -> None:
    model = Net()
    model.average = average = AveragedModel(model.line)
    average.requires_grad_(False)
    job = a_job(model)
    train(job, lambda: average.update_parameters(model.line), epochs=2)
    assert average.n_averaged == 8
    assert job.parts.state.get()["model"]["average.n_averaged"] == 8


@pytest.mark.parametrize("start", [torch.zeros(0), None], ids=["empty", "None"])
def test_empty_states_start_empty_per_micro_batch(start: Tensor | None) -> None:
    found = []

    class Growing(Net):
        membrane: Tensor | None

        def touch(self, x: Tensor) -> Tensor:
            found.append(self.membrane)
            self.membrane = x.detach().clone()
            return x

    model = Growing()
    model.register_buffer("membrane", start)
    job = a_job(model)
    train(job)
    assert all(tensor_found is start for tensor_found in found)
    assert model.membrane is start
    newcomer = a_job(Growing())
    newcomer.model.register_buffer("membrane", torch.zeros(0))
    newcomer.parts.state.put(job.parts.state.get())


def test_buffers_with_gradients_are_averaged() -> None:
    class Quantizing(Net):
        codes: Tensor

        def touch(self, x: Tensor) -> Tensor:
            self.codes.data.lerp_(x.detach().mean(0), 0.5)
            return x + self.codes

    model = Quantizing()
    model.register_buffer("codes", torch.zeros(4).requires_grad_())
    train(a_job(model))
    assert model.codes.requires_grad
    assert model.codes.grad is None
    assert bool(model.codes.detach().ne(0).all())


def test_buffers_made_in_forward_are_refused() -> None:
    class Making(Net):
        def touch(self, x: Tensor) -> Tensor:
            self.register_buffer("mean", x.detach().mean(0))
            return x

    with pytest.raises(SpecError, match="buffer 'mean': got one that forward makes, and changes"):
        train(a_job(Making()))


# Parameters ---------------------------------------------------------------------------------------


class Initialising(Net):
    is_set: Tensor

    def touch(self, x: Tensor) -> Tensor:
        if not self.is_set:
            self.line.weight.data.copy_(x.detach().mean(0, keepdim=True))
            self.is_set.fill_(1)
        return x


def initialising() -> Initialising:
    model = Initialising()
    model.register_buffer("is_set", torch.tensor(0))
    return model


def test_a_parameter_that_forward_initialises_is_refused() -> None:
    with pytest.raises(SpecError, match=r"'line.weight'.*first forward pass sets(.|\n)*one batch"):
        train(a_job(initialising()))


def test_gradients_before_the_join_are_forgotten() -> None:
    model = Net()
    model(ROWS).sum().backward()  # a search for a learning rate, a first look
    train(a_job(model))


class Normalising(Net):
    def touch(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.line.weight.div_(self.line.weight.norm())
        return x


def test_a_parameter_that_forward_changes_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"'line.weight': got a value changed in forward or by hand"
    ):
        train(a_job(Normalising()))


class Bounded(Net):
    """Keeps a weight's norm below a bound through .data, as EEGNet in many repositories."""

    bound: float

    def touch(self, x: Tensor) -> Tensor:
        weight = self.line.weight
        weight.data = torch.renorm(weight.data, p=2, dim=0, maxnorm=self.bound)
        return x


def test_a_bound_in_forward_is_refused_at_once() -> None:
    with pytest.raises(SpecError, match=r"'line.weight'(.|\n)*a norm or a clamp") as error:
        train(a_job(Bounded(bound=0.1)))
    assert "first forward pass" in error.value.got


def test_a_bound_reached_later_is_warned_of(capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = Bounded(bound=2.0)
    job = a_job(model, torch.optim.SGD(model.parameters(), lr=0.3, maximize=True))
    train(job, epochs=20)
    words = "parameter 'line.weight' changes within a step, through .data"
    assert capfd.readouterr().err.count(words) == 1


def test_embeddings_that_scale_rows_are_named() -> None:
    class Scaling(Net):
        table: nn.Embedding

        def touch(self, x: Tensor) -> Tensor:
            found: Tensor = self.table(torch.zeros(len(x), dtype=torch.long))
            return found

    def scaling(max_norm: float | None) -> Scaling:
        return Scaling(table=nn.Embedding(3, 4, max_norm=max_norm))

    with pytest.raises(SpecError, match=r"'table.weight': got Embedding\(max_norm=0.5\)") as error:
        train(a_job(scaling(0.5)))
    assert "embedding.weight.data.renorm_(2, 0, 0.5)" in error.value.hint
    model = scaling(None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def scale(*_: Any) -> None:
        model.table.weight.data.renorm_(2, 0, 0.5)

    optimizer.register_step_post_hook(scale)
    train(a_job(model, optimizer))
    assert model.table.weight.norm(dim=1).max() <= 0.5 + 1e-6


def test_a_batch_before_the_join_initialises_it() -> None:
    model = initialising()
    model(ROWS[:8])
    train(a_job(model))


# Optimizers ---------------------------------------------------------------------------------------


class Keeping(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["rule"] = self.rule
        super().step()

    def rule(self) -> None: ...


def test_uncarried_states_fail_the_first_step() -> None:
    model = Net()
    job = a_job(model, Keeping(model.parameters(), lr=0.1))
    with pytest.raises(SpecError, match=r"optimizer Keeping: got a method .* state\.0\.rule"):
        train(job)
    assert job.committed == 1


class Counting(torch.optim.SGD):
    count = 0
    seen: tuple[int, ...] = ()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1
        self.seen = (*self.seen, self.count)
        super().step()


def test_attributes_that_steps_change_are_carried() -> None:
    jobs = [a_job(model := Net(), Counting(model.parameters(), lr=0.1)) for _ in range(2)]
    train(jobs[0])
    jobs[1].parts.state.put(jobs[0].parts.state.get())
    (optimizer,) = jobs[1].parts.optimization.optimizers
    assert isinstance(optimizer, Counting)
    assert (optimizer.count, optimizer.seen) == (4, (1, 2, 3, 4))


class Defaulting(torch.optim.SGD):
    """Sets what older states lacked as it loads one, as copies of old torch optimizers do."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.param_groups[0]["is_rectified"] = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("is_rectified", True)
            group.setdefault("amsgrad", False)


def test_loading_adds_nothing_to_groups() -> None:
    jobs = [a_job(model := Net(), Defaulting(model.parameters())) for _ in range(2)]
    train(jobs[0])
    tree = jobs[0].parts.state.get()
    jobs[1].parts.state.put(tree)
    assert jobs[1].parts.state.digests() == jobs[0].parts.state.digests()
    (older,) = tree["optimizer"]["param_groups"]
    del older["is_rectified"]
    jobs[1].parts.state.put(tree)
    assert jobs[1].parts.optimization.optimizers[0].param_groups[0]["is_rectified"]


class Averaging(torch.optim.SGD):
    """Keeps averages of its weights in attributes, to which it pulls them."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.weights = list(self.param_groups[0]["params"])
        self.averages = [p.detach().clone() for p in self.weights]
        self.by_name = {"first": self.averages[0]}
        self.last: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for parameter, average in zip(self.weights, self.averages, strict=True):
            average.lerp_(parameter, 0.1)
            parameter.lerp_(average, 0.1)
        self.last = self.averages[-1].clone()


def test_tensors_in_an_optimizers_attributes_are_carried() -> None:
    jobs = [a_job(model := Net(), Averaging(model.parameters())) for _ in range(2)]
    train(jobs[0])
    jobs[1].parts.state.put(jobs[0].parts.state.get())
    optimizers = [job.parts.optimization.optimizers[0] for job in jobs]
    first, second = optimizers
    assert isinstance(first, Averaging)
    assert isinstance(second, Averaging)
    assert all(map(torch.equal, first.averages, second.averages))
    assert second.last is not None
    assert torch.equal(second.last, first.averages[-1])
    assert second.last.data_ptr() != first.averages[-1].data_ptr()
    assert second.by_name["first"] is second.averages[0]
    assert second.weights[0] is next(jobs[1].model.parameters())


def test_a_tensor_of_no_model_is_named() -> None:
    model, weight = Net(), torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([*model.parameters(), weight], lr=0.1)
    with pytest.raises(
        SpecError, match=r"a tensor of shape \[1\] that is no nn.Parameter"
    ) as error:
        Optimization(model, [optimizer])
    assert "nn.Parameter(criterion.a.detach())" in error.value.hint


def test_a_parameter_of_no_model_is_named() -> None:
    model, criterion = Net(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
    with pytest.raises(SpecError, match=r"a parameter that no model has") as error:
        Optimization(model, [optimizer])
    assert error.value.hint.startswith("brim.join([model, criterion], optimizer)")


def deep() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))


def by_set(model: nn.Module, order: Sequence[int]) -> torch.optim.Adam:
    """An optimizer whose groups come of sets, whose order is another in each process."""
    first, *rest = model.parameters()
    return torch.optim.Adam([{"params": [first]}, {"params": [rest[i] for i in order]}], lr=0.1)


def test_parameters_from_sets_are_told_apart() -> None:
    jobs = [a_job(model := deep(), by_set(model, order)) for order in ([4, 0, 2, 1, 3], range(5))]
    for job in jobs:
        train(job)
    assert jobs[0].parts.state.digests() == jobs[1].parts.state.digests()
    taker = a_job(model := deep(), by_set(model, [1, 0, 4, 3, 2]))
    taker.parts.state.put(jobs[0].parts.state.get())
    assert taker.parts.state.digests() == jobs[0].parts.state.digests()
    (optimizer,) = taker.parts.optimization.optimizers
    for parameter in taker.model.parameters():
        assert optimizer.state[parameter]["exp_avg"].shape == parameter.shape


def test_states_of_an_older_brim_keep_their_numbers() -> None:
    order = [4, 0, 2, 1, 3]
    optimizer = by_set(model := deep(), order)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    averages = {n: optimizer.state[p]["exp_avg"] for n, p in model.named_parameters()}
    job = a_job(model := deep(), by_set(model, order))
    tree = {**job.parts.state.get(), "optimizer": optimizer.state_dict()}
    del tree["parameters in order"]
    job.parts.state.put(tree)
    (taker,) = job.parts.optimization.optimizers
    for name, parameter in model.named_parameters():
        assert torch.equal(taker.state[parameter]["exp_avg"], averages[name])


def test_lists_in_an_optimizers_order_keep_it() -> None:
    model = deep()
    optimizer = by_set(model, [4, 0, 2, 1, 3])
    order = list(optimizer.param_groups[1]["params"])
    optimizer.averages = [p.detach().clone() for p in order]  # type: ignore[attr-defined]
    Optimization(model, [optimizer])
    assert all(map(Tensor.is_set_to, optimizer.param_groups[1]["params"], order))


class Wrapping(torch.optim.Optimizer):
    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.param_groups = inner.param_groups


@pytest.mark.parametrize(
    ("library", "words"),
    [
        ("accelerate.optimizer", "leave out accelerator.prepare"),
        ("opacus.optimizers.optimizer", "DP-SGD clips the gradient of each sample"),
        ("other", "give brim.join the optimizer inside"),
    ],
)
def test_a_wrapper_without_hooks_is_refused_by_name(library: str, words: str) -> None:
    model = nn.Linear(2, 1)
    kind = type("Prepared", (Wrapping,), {"__module__": library})
    with pytest.raises(SpecError, match=words) as refused:
        Optimization(model, [kind(torch.optim.SGD(model.parameters(), lr=0.1))])
    assert f"{library.partition('.')[0]}'s Prepared, a wrapper" in str(refused.value)


def test_epoch_based_schedulers_are_refused() -> None:
    class ByEpoch:
        def step(self, epoch: int, metric: float | None = None) -> None: ...

        def state_dict(self) -> dict[str, Any]:
            return {}

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(SpecError, match=r"takes the epoch(.|\n)*scheduler.step\(epoch\)"):
        Optimization(model, [optimizer], schedulers=[ByEpoch()])


# Data ---------------------------------------------------------------------------------------------


def test_a_tensor_is_read_by_its_rows() -> None:
    import numpy as np

    assert torch.equal(fetch(ROWS, np.array([3, 1])), ROWS[[3, 1]])


def test_jagged_tensors_are_compared_by_their_parts() -> None:
    def jagged(*lengths: int, start: float = 0.0) -> Tensor:
        parts = [torch.arange(length) + start for length in lengths]
        return torch.nested.nested_tensor(parts, layout=torch.jagged)

    assert is_same(jagged(2, 3), jagged(2, 3))
    assert not is_same(jagged(2, 3), jagged(3, 2))
    assert not is_same(jagged(2, 3), jagged(2, 3, start=1.0))
    assert digest_of(jagged(2, 3)) == digest_of(jagged(2, 3))
    assert digest_of(jagged(2, 3)) != digest_of(jagged(2, 3, start=1.0))
