"""Programs of captured passes: the bits of eager ones, and refusals of what cannot be replayed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from torch import Tensor, nn
from torch.nn import functional

import brim
from brim.coordination.job.reduction import Block
from brim.data.feed import MicroBatchRequest, Read
from brim.domain.batch import Span
from brim.embeddings.embedding import Embeddings
from brim.errors import SpecError, UserCodeError
from brim.train.captured.captured_steps import CapturedSteps, ReplayedPart, _same
from brim.train.captured.lookups import Lookups
from brim.train.captured.program import MicroInputs, StepProgram
from brim.train.captured.recipe import NotCapturable, PassRecipe, leaves_of, load, no_recipe
from brim.train.captured.tracing import trace
from brim.train.captured.trust import Trust
from brim.train.context import spec_of_a_loner
from brim.train.exchange.accumulate import Accumulator
from brim.train.exchange.contribution import Contributions
from brim.train.job import Job

SIZE = 6  # samples of a micro-batch
NO_LOOKUPS = Lookups(Embeddings(nn.Linear(1, 1), [], spec_of_a_loner(0)))
Pair = tuple[Any, Tensor]


class Layers(nn.Module):
    """Normalisation, dropout, a frozen layer, and a parameter that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.idle = nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor) -> Any:
        hidden = functional.dropout(self.norm(self.first(inputs)).relu(), 0.3)
        return self.last(self.frozen(hidden) + hidden)


class Images(nn.Module):
    """Convolutions, as an image has them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Any:
        return self.last(self.norm(self.conv(inputs)).relu().mean((2, 3)))


class Words(nn.Module):
    """Attention with dropout, and an embedding whose weight is tied to the output."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)

    def forward(self, inputs: dict[str, Tensor]) -> Any:
        return self.layer(self.words(inputs["ids"])).mean(1) @ self.words.weight.T


class Recurrent(nn.Module):
    """A recurrent layer, and a bag of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.layer = nn.EmbeddingBag(20, 4, mode="mean"), nn.GRU(4, 6, batch_first=True)

    def forward(self, inputs: dict[str, Tensor]) -> Any:
        sequence = self.bag(inputs["ids"]).unsqueeze(1).expand(-1, 3, -1)
        return self.layer(sequence)[0][:, -1]


class Turned(nn.Module):
    """Two views of the same tensor, one of which is turned in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Any:
        hidden = self.first(inputs)
        turned, other = hidden.t(), hidden.t()
        turned.t_()
        return self.last(turned) * self.last(other.transpose(0, 1))


def numbers(*shape: int) -> Callable[[torch.Generator], Any]:
    return lambda generator: torch.randn(SIZE, *shape, generator=generator)


def ids(generator: torch.Generator) -> dict[str, Tensor]:
    return {"ids": torch.randint(0, 20, (SIZE, 4), generator=generator)}


FAMILIES: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], Any], int]] = {
    "layers": (Layers, numbers(5), 3),
    "images": (Images, numbers(1, 6, 6), 3),
    "words": (Words, ids, 20),
    "recurrent": (Recurrent, ids, 6),
    "turned": (Turned, numbers(5), 3),
}


def samples_of(draw: Callable[[torch.Generator], Any], classes: int, count: int) -> list[Pair]:
    generator = torch.Generator().manual_seed(1)
    return [
        (draw(generator), torch.randint(0, classes, (SIZE,), generator=generator))
        for _ in range(count)
    ]


def pass_of(model: nn.Module) -> Callable[[Pair], Tensor]:
    return lambda pair: functional.cross_entropy(model(pair[0]), pair[1])


def built(build: Callable[[], nn.Module]) -> tuple[nn.Module, Contributions]:
    torch.manual_seed(0)
    model = build()
    return model, Contributions(model)


def recipe_of(build: Callable[[], nn.Module], samples: Pair) -> PassRecipe:
    model, contributions = built(build)
    return trace(model, contributions, pass_of(model), samples)


def eager_sums(
    model: nn.Module,
    contributions: Contributions,
    pairs: Sequence[Pair],
    blocks: Sequence[Block],
    parts: int,
) -> list[list[Tensor]]:
    accumulator, pass_, first = Accumulator(parts, blocks, {}), pass_of(model), blocks[0].start
    for micro, pair in enumerate(pairs, first):
        contributions.reset()
        torch.manual_seed(micro)
        loss = pass_(pair)
        loss.backward(torch.full_like(loss, 0.25))
        losses = [loss.detach().reshape(1)]
        accumulator.add(micro, contributions.take(0.25, losses, stop=False, due=False))
    contributions.reset()
    return [accumulator.block(block.start) for block in blocks]


def network_of(model: nn.Module, contributions: Contributions) -> list[Tensor]:
    trained = {id(parameter) for parameter in contributions.parameters}
    return [
        *contributions.parameters,
        *(parameter for parameter in model.parameters() if id(parameter) not in trained),
        *(buffer.start for buffer in contributions.buffers),
    ]


def program_of(
    model: nn.Module,
    contributions: Contributions,
    recipe: PassRecipe,
    blocks: Sequence[Block],
    parts: int,
) -> StepProgram:
    counted = len(contributions.buffers) - len(contributions.averaged)
    micro_batches = sum(min(start + size, parts) - start for start, size in blocks)
    return StepProgram(
        [recipe] * micro_batches,
        blocks,
        parts=parts,
        shared=len(network_of(model, contributions)),
        counted=counted,
    )


def program_sums(
    model: nn.Module,
    contributions: Contributions,
    recipe: PassRecipe,
    program: StepProgram,
    pairs: Sequence[Pair],
    first: int,
) -> list[list[Tensor]]:
    inputs = []
    for micro, pair in enumerate(pairs, first):
        torch.manual_seed(micro)
        draws = [draw.draw() for draw in recipe.draws]
        weight = torch.full((1,), 0.25, dtype=torch.float64)
        gradient = torch.full(recipe.loss[1], 0.25, dtype=recipe.loss[0])
        weights = (gradient, weight, weight.reshape(()))
        inputs.append(MicroInputs(weights, leaves_of(pair)[0], [], draws))
    sums, _, losses = program(network_of(model, contributions), inputs)
    assert losses.shape == (len(pairs),)
    return [contributions.of_program(part, recipe.used, stop=False, due=False) for part in sums]


@pytest.mark.parametrize("family", FAMILIES)
def test_programs_give_the_bits_of_eager_passes(family: str, tmp_path: Any) -> None:
    build, draw, classes = FAMILIES[family]
    blocks, parts = [Block(1, 1), Block(2, 2), Block(4, 4)], 7  # the last block is clipped
    pairs = samples_of(draw, classes, 6)
    recipe_of(build, pairs[0]).save(tmp_path / "recipe.pt")
    recipe = load(tmp_path / "recipe.pt")
    model, contributions = built(build)
    eager = eager_sums(model, contributions, pairs, blocks, parts)
    program = program_of(model, contributions, recipe, blocks, parts)
    own = program_sums(model, contributions, recipe, program, pairs, blocks[0].start)
    for block, (left, right) in enumerate(zip(eager, own, strict=True)):
        for place, (a, b) in enumerate(zip(left, right, strict=True)):
            assert _same(a, b), (blocks[block], contributions.name_of(place))


def test_programs_have_few_calls() -> None:
    """Of 40 calls that the tracer sees; of the transposed weights there is one for all passes."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))

    recipe = recipe_of(build, samples_of(numbers(5), 3, 1)[0])
    assert len(recipe.calls) == 19
    program = program_of(*built(build), recipe, [Block(0, 8)], 8)
    additions = 7 * 5
    assert program.call_count == 8 * 17 + 2 + additions + 1


class PrintingLinear(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * float(inputs.detach().numpy()[0, 0])


class Branches(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * (2 if inputs.sum() > 0 else 3)


class Rolls(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * random.random()


class Numpy(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * float(np.random.rand())


class Picks(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + inputs.nonzero().shape[0]


class Masks(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + inputs[inputs > 0].sum()


class Spoils(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.mul_(2))


class OwnGenerator(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + torch.rand(1, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (PrintingLinear, "Tensor.numpy"),
        (Branches, "reads a number of a tensor"),
        (Rolls, "random or numpy"),
        (Numpy, "random or numpy"),
        (Picks, "depends on the samples' values"),
        (Masks, "depends on the samples' values"),
        (Spoils, "in place"),
        (OwnGenerator, "generator of its own"),
    ],
)
def test_passes_that_leave_tensors_are_refused(kind: type[nn.Linear], reason: str) -> None:
    with pytest.raises(NotCapturable, match=reason):
        recipe_of(lambda: kind(5, 3), samples_of(numbers(5), 3, 1)[0])


def test_hooks_on_parameters_are_refused() -> None:
    model, contributions = built(lambda: nn.Linear(5, 3))
    next(model.parameters()).register_hook(lambda gradient: gradient.clamp(-1, 1))
    with pytest.raises(NotCapturable, match="hooks"):
        trace(model, contributions, pass_of(model), samples_of(numbers(5), 3, 1)[0])


@pytest.mark.parametrize("samples", [np.zeros(3), [torch.zeros(2), object()], {1, 2}])
def test_samples_without_tensors_are_refused(samples: object) -> None:
    with pytest.raises(NotCapturable, match="samples with"):
        leaves_of(samples)


def read_of(pair: Pair, micro: int) -> Read:
    span = Span(micro * SIZE, (micro + 1) * SIZE)
    return Read(MicroBatchRequest(0, micro, 0, span), pair, 0)


def steps_with(
    recipe: PassRecipe, folder: Any
) -> tuple[CapturedSteps, StepProgram | None, list[Read]]:
    model, contributions = built(Layers)
    steps = CapturedSteps(
        model, contributions, pass_of(model), key=b"", folder=folder, seed=0, lookups=NO_LOOKUPS
    )
    recipe.save(steps._path(SIZE))
    pairs = samples_of(numbers(5), 3, 2)
    reads = [read_of(pair, micro) for micro, pair in enumerate(pairs)]
    steps.program(reads, [Block(0, 2)], 2, may_trace=False)
    return steps, steps.program(reads, [Block(0, 2)], 2, may_trace=False), reads


def replay_of(steps: CapturedSteps, program: StepProgram, reads: list[Read]) -> ReplayedPart:
    replay = steps.replay(program, reads, Span(0, 2 * SIZE), 0, stop=False, due=False)
    assert replay is not None
    return replay


def noted_steps(folder: Any) -> tuple[CapturedSteps, StepProgram, list[Read]]:
    recipe = recipe_of(Layers, samples_of(numbers(5), 3, 1)[0])
    steps, program, reads = steps_with(recipe, folder)
    assert program is not None
    return steps, program, reads


def test_a_program_that_differs_is_not_used(tmp_path: Any, capsys: Any) -> None:
    steps, program, reads = noted_steps(tmp_path)
    replay = replay_of(steps, program, reads)
    steps.compare(replay, replay.sums)
    assert not steps.refused
    other = [[tensor.clone() for tensor in part] for part in replay.sums]
    other[0][1][0, 2] = other[0][1][0, 2].nextafter(torch.tensor(9.0))
    steps.compare(replay, other)
    assert "the gradient of 'first.weight' differs" in steps.refused
    assert "steps stay eager" in capsys.readouterr().err
    assert steps.program(reads, [Block(0, 2)], 2, may_trace=False) is None


def test_a_program_that_counted_may_not_differ(tmp_path: Any) -> None:
    steps, program, reads = noted_steps(tmp_path)
    program.trust.counted()
    replay = replay_of(steps, program, reads)
    other = [[tensor + 1 for tensor in part] for part in replay.sums]
    with pytest.raises(UserCodeError, match="1 replayed steps ago"):
        steps.compare(replay, other)


def test_a_slower_program_is_not_used(tmp_path: Any, capsys: Any) -> None:
    steps, program, reads = noted_steps(tmp_path)
    for _ in range(3):
        replay = structs.replace(replay_of(steps, program, reads), seconds=1e9)
        steps.compare(replay, replay.sums)
    assert "ms eagerly" in capsys.readouterr().err
    assert steps.program(reads, [Block(0, 2)], 2, may_trace=False) is None
    assert not steps.refused  # programs of other sizes may be quicker


@pytest.mark.parametrize(
    "name",
    [
        "Graph",
        "_get_schema",
        "_create_function_from_graph",
        "_get_graph_executor_optimize",
        "_set_graph_executor_optimize",
        "_AutoDispatchBelowAutograd",
    ],
)
def test_a_torch_without_a_function_stays_eager(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe_of(Layers, samples_of(numbers(5), 3, 1)[0])
    monkeypatch.delattr(torch._C, name)
    steps, program, _ = steps_with(recipe, tmp_path)
    assert program is None
    assert name in steps.refused
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_trust_grows_and_ends() -> None:
    trust, gap, longest = Trust(), 0, 0
    for _ in range(5000):
        gap += 1
        if trust.asks_for_comparison(begins_epoch=False):
            trust.agreed(own=1.0, eager=2.0)
            longest, gap = max(longest, gap), 0
        else:
            trust.counted()
    assert longest == 1001


def test_a_refused_recipe_keeps_steps_eager(tmp_path: Any) -> None:
    steps, program, _ = steps_with(no_recipe("a reason"), tmp_path)
    assert (program, steps.refused) == (None, "a reason")


def test_killed_noting_is_begun_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    monkeypatch.setattr(CapturedSteps, "_have_noted", lambda _, samples, size: begun.append(size))
    model, contributions = built(Layers)
    pairs = samples_of(numbers(5), 3, 2)
    reads = [read_of(pair, micro) for micro, pair in enumerate(pairs)]

    def looks(*, may_trace: bool) -> CapturedSteps:
        steps = CapturedSteps(
            model,
            contributions,
            pass_of(model),
            key=b"",
            folder=tmp_path / "captured",
            seed=0,
            lookups=NO_LOOKUPS,
        )
        assert steps.program(reads, [Block(0, 2)], 2, may_trace=may_trace) is None
        return steps

    looks(may_trace=False)
    first = looks(may_trace=True)
    looks(may_trace=True)
    assert begun == [SIZE], "the first is at it"
    first._let_go()  # as its end does
    looks(may_trace=True)._let_go()
    assert begun == [SIZE, SIZE]
    last = looks(may_trace=True)
    assert begun == [SIZE, SIZE]
    assert last.refused == "its calls were not noted: 2 processes died of it"
    assert looks(may_trace=False).refused == last.refused


def test_an_unreadable_recipe_keeps_steps_eager(tmp_path: Any) -> None:
    recipe = recipe_of(Layers, samples_of(numbers(5), 3, 1)[0])
    steps, _, reads = steps_with(recipe, tmp_path)
    other = CapturedSteps(
        *built(Layers),
        lambda _: torch.ones(()),
        key=b"",
        folder=tmp_path,
        seed=0,
        lookups=NO_LOOKUPS,
    )
    steps._path(SIZE).write_bytes(b"torn")
    assert other.program(reads, [Block(0, 2)], 2, may_trace=True) is None
    assert "cannot be read" in other.refused


def test_other_samples_are_computed_eagerly(tmp_path: Any) -> None:
    steps, program, reads = noted_steps(tmp_path)
    inputs, target = reads[0].sample
    other = [structs.replace(reads[0], sample=(inputs.double(), target)), reads[1]]
    assert steps.replay(program, other, Span(0, 2 * SIZE), 0, stop=False, due=False) is None
    assert not steps.refused


# Own loops ----------------------------------------------------------------------------------------

BATCH = 16  # samples of a step, in eight micro-batches
ROWS = torch.utils.data.TensorDataset(
    torch.randn(10 * BATCH, 5, generator=torch.Generator().manual_seed(2)),
    torch.randint(0, 3, (10 * BATCH,), generator=torch.Generator().manual_seed(3)),
)


class OwnLoop:
    """A loop of one worker, whose steps are replayed once it has a recipe."""

    def __init__(
        self, folder: Path, *, capture: bool = True, build: Callable[[], nn.Module] = Layers
    ) -> None:
        torch.manual_seed(0)
        self.model = build()
        spec = replace(spec_of_a_loner(0), capture=capture)
        optimizer = torch.optim.Adagrad(self.model.parameters(), lr=0.1)
        self.job = Job(self.model, optimizer, spec=spec, context=None)
        self.job.parts.run_dir = folder
        self.loss = self.job.step_function(self._loss)
        self.bodies = 0
        self.losses: list[float] = []

    def _loss(self, batch: Any) -> Tensor:
        return functional.cross_entropy(self.model(batch.inputs), batch.target)

    def run(self, body: Callable[[OwnLoop, Any], None] | None = None) -> OwnLoop:
        for batch in self.job.batches(ROWS, global_batch_size=BATCH, epochs=4):
            self.bodies += 1
            if body is not None:
                body(self, batch)
            loss = self.job.step(self.loss(batch))
            self.losses += [] if loss is None else [loss]
        return self

    @property
    def weights(self) -> list[Tensor]:
        return list(self.model.state_dict().values())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run in which the pass of own loops was noted before."""
    monkeypatch.setattr(Trust, "is_slower", False)
    note(OwnLoop(tmp_path))
    return tmp_path


def note(noted: OwnLoop) -> None:
    """Note the pass of a loop of this code, which is of no use afterwards."""
    captured = noted.job.parts.captured
    assert captured is not None
    size = BATCH // 8
    samples = list(ROWS[:size])
    captured._path(size).parent.mkdir()
    contributions = noted.job.parts.contributions
    embeddings = noted.job.parts.embeddings
    with embeddings.in_use():
        recipe = trace(noted.model, contributions, captured._pass, samples, embeddings.modules)
    recipe.save(captured._path(size))


def test_own_loops_end_with_eager_weights(folder: Path) -> None:
    eager, captured = OwnLoop(folder, capture=False).run(), OwnLoop(folder).run()
    assert eager.bodies == 8 * 40 + 5  # and audits
    assert captured.bodies < eager.bodies / 2
    assert captured.losses == eager.losses
    assert all(map(torch.equal, captured.weights, eager.weights))


def stops(loop: OwnLoop, _: Any) -> None:
    if loop.job.committed == 25:
        loop.job.stop()


def test_a_stop_in_a_replayed_step_ends_it(folder: Path) -> None:
    eager, captured = OwnLoop(folder, capture=False).run(stops), OwnLoop(folder).run(stops)
    assert eager.losses == captured.losses
    assert len(eager.losses) == 26


def doubles(loop: OwnLoop, _: Any) -> None:
    if loop.job.committed >= 25:
        loop.loss = lambda batch: 2 * loop._loss(batch)


def changes_buffers(loop: OwnLoop, batch: Any) -> None:
    if loop.job.committed >= 25:
        loop.model(batch.inputs)


@pytest.mark.parametrize(
    ("body", "message"), [(doubles, "another tensor"), (changes_buffers, "a buffer of the network")]
)
def test_bodies_may_not_add_to_replayed_steps(
    body: Callable[[OwnLoop, Any], None], message: str, folder: Path
) -> None:
    with pytest.raises(UserCodeError, match=message):
        OwnLoop(folder).run(body)


def test_a_loss_beside_the_function_stays_eager(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = OwnLoop(folder)
    loop.loss = lambda batch: 1 * loop._loss(batch)
    loop.run()
    assert loop.bodies == 8 * 40 + 5
    assert "job.step got another tensor" in capsys.readouterr().err


def test_a_job_has_one_step_function(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="a second function"):
        OwnLoop(tmp_path).job.step_function(lambda batch: torch.ones(()))


def test_own_loops_without_a_function_stay_eager(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = replace(spec_of_a_loner(0), capture=True)
    model = nn.Linear(5, 3)
    job = Job(model, torch.optim.SGD(model.parameters(), lr=0.1), spec=spec, context=None)
    for batch in job.batches(ROWS, global_batch_size=80):
        job.step(functional.cross_entropy(model(batch.inputs), batch.target))
    assert "the loop has no @job.step_function" in capsys.readouterr().err


class ByRows(nn.Module):
    """Two lookups in one table, at places that are computed, and a table of a large space."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4, sparse=True)
        self.large = brim.Embedding(4, limit=1000)
        self.last = nn.Linear(16, 3)

    def forward(self, inputs: Tensor) -> Any:
        ids = (inputs.abs() * 20).long().clamp(max=24)
        offsets = torch.tensor([0, 25, 0, 0, 0])
        near, far = self.table((ids + offsets)[:, :2]), self.table(ids[:, 2])
        parts = [near.flatten(1), far, self.large(ids[:, 4])]
        return self.last(torch.cat(parts, 1)).div_(2)  # a call in place has no part in the ids


def test_dense_parts_around_embeddings_are_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trust, "is_slower", False)
    note(OwnLoop(tmp_path, build=ByRows))
    eager = OwnLoop(tmp_path, capture=False, build=ByRows).run()
    captured = OwnLoop(tmp_path, build=ByRows).run()
    assert captured.bodies < eager.bodies / 2
    assert captured.losses == eager.losses
    assert len(eager.model.state_dict()) == len(captured.weights)
    for left, right in zip(eager.weights, captured.weights, strict=True):
        assert torch.equal(left, right)


class Hops(ByRows):
    def forward(self, inputs: Tensor) -> Any:
        ids = (inputs.abs() * 20).long().clamp(max=24)
        ids += 1
        return self.last(self.table(ids[:, :4]).flatten(1))


class Guesses(ByRows):
    def forward(self, inputs: Tensor) -> Any:
        ids = self.last.weight.argmax(1)[:1].expand(len(inputs), 4)
        return self.last(self.table(ids).flatten(1))


@pytest.mark.parametrize(("kind", "reason"), [(Hops, "in place"), (Guesses, "than the samples")])
def test_ids_that_cannot_be_computed_are_refused(
    kind: type[ByRows], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(NotCapturable, match=reason):
        note(OwnLoop(tmp_path, build=kind))
