"""Losses and hooks that see a micro-batch where they would see a batch are named; others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from brim.train.checks.left_over import of_buffers, of_hooks, of_loss, of_script

B, D = 8, 8  # as many samples as features: sizes alone tell nothing

torch.manual_seed(0)
ONE, OTHER = nn.Linear(5, D), nn.Linear(5, D)
DATA = torch.randn(B, 5)
SEQUENCE = torch.randn(B, B, D)
LABELS = torch.arange(B) % 3
WORDS = torch.randint(9, (B, B))


def one() -> Any:
    return functional.normalize(ONE(DATA))


def other() -> Any:
    return functional.normalize(OTHER(DATA))


def clip() -> Any:
    scores = nn.Parameter(torch.tensor(2.0)).exp() * one() @ other().t()
    labels = torch.arange(B)
    return functional.cross_entropy(scores, labels) + functional.cross_entropy(scores.t(), labels)


def two_views() -> Any:
    """SimCLR."""
    views = torch.cat([one(), other()])
    scores = (views @ views.T).masked_fill(torch.eye(2 * B, dtype=torch.bool), -9.0)
    return functional.cross_entropy(scores, (torch.arange(2 * B) + B) % (2 * B))


def hard_negatives() -> Any:
    """sentence-transformers' MultipleNegativesRankingLoss."""
    return functional.cross_entropy(one() @ torch.cat([other(), other()]).T, torch.arange(B))


def mined_triplets() -> Any:
    output = one()
    with torch.no_grad():
        distances = torch.cdist(output, output)
        positive = distances.masked_fill(LABELS[:, None] != LABELS, -1.0).argmax(1)
        negative = distances.masked_fill(LABELS[:, None] == LABELS, 99.0).argmin(1)
    return functional.triplet_margin_loss(output, output[positive], output[negative])


def hard_triplets() -> Any:
    distances = torch.cdist(one(), one())
    return (distances.amax(1) - distances.amin(1) + 0.2).relu().mean()


def barlow_twins() -> Any:
    return ((one().T @ other()) / B - torch.eye(D)).pow(2).mean()


def listwise() -> Any:
    return -(functional.log_softmax(ONE(DATA)[:, 0], 0) * torch.rand(B)).mean()


def cox() -> Any:
    risk = ONE(DATA)[:, 0]
    return -(risk - risk.logcumsumexp(0)).mean()


def cosine_of_pairs() -> Any:
    return functional.cosine_similarity(one()[:, None], other()[None], dim=-1).mean()


def broadcast_target() -> Any:
    return ((ONE(DATA)[:, :1] - torch.ones(B)) ** 2).mean()


COMPARING: list[Callable[[], Any]] = [
    clip,
    two_views,
    hard_negatives,
    mined_triplets,
    hard_triplets,
    barlow_twins,
    listwise,
    cox,
    cosine_of_pairs,
    broadcast_target,
    lambda: functional.cross_entropy(one() @ other().T, torch.arange(B)),
    lambda: functional.cross_entropy(one() @ other().detach().T, torch.arange(B)),
    lambda: functional.cross_entropy(functional.linear(one(), other()), torch.arange(B)),
    lambda: torch.einsum("id,jd->ij", one(), other()).logsumexp(1).mean(),
    lambda: torch.matmul(one()[None], other().T[None]).logsumexp(2).mean(),
    lambda: functional.pdist(one()).mean(),
    lambda: (one()[:, None] - other()[None]).pow(2).sum(-1).mean(),
    lambda: one().index_select(0, torch.randperm(B)).mean(),
    lambda: (1 - ONE(DATA).std(0)).relu().mean(),
]


@pytest.mark.parametrize("loss", COMPARING, ids=lambda loss: str(loss.__name__))
def test_losses_that_compare_samples_are_named(loss: Callable[[], Any]) -> None:
    message = of_loss(loss(), samples=B)
    assert message.startswith(f"the loss compares the {B} samples of a micro-batch")
    assert "--micro-batches 1, or brim.join(..., micro_batches=1)" in message


def test_comparing_all_samples_of_a_step_is_healthy() -> None:
    assert not of_loss(clip(), samples=B, is_part=False)


# Healthy losses -----------------------------------------------------------------------------------


def attention() -> Any:
    layer = nn.TransformerEncoderLayer(D, 2, D, batch_first=True)
    return functional.cross_entropy(layer(SEQUENCE).mean(1), LABELS)


def attention_by_hand() -> Any:
    queries, keys = nn.Linear(D, D)(SEQUENCE), nn.Linear(D, D)(SEQUENCE)
    return ((queries @ keys.transpose(1, 2)).softmax(-1) @ SEQUENCE).pow(2).mean()


def tied_weights() -> Any:
    table = nn.Embedding(B, D)  # as many words as samples
    scores = table(WORDS % B) @ table.weight.T
    return functional.cross_entropy(scores.flatten(0, 1), (WORDS % B).flatten())


def matrix_factorisation() -> Any:
    users, items, bias = nn.Embedding(9, D), nn.Embedding(9, D), nn.Embedding(9, 1)
    rating = (users(WORDS[0]) * items(WORDS[1])).sum(1) + bias(WORDS[0]).squeeze(1)
    return functional.mse_loss(rating, torch.ones(B))


def lstm() -> Any:
    output, _ = nn.LSTM(D, D, batch_first=True)(SEQUENCE)
    return functional.cross_entropy(output[:, -1], LABELS)


def lstm_cell() -> Any:
    cell, hidden = nn.LSTMCell(D, D), None
    for place in range(3):
        hidden = cell(SEQUENCE[:, place], hidden)
    assert hidden is not None
    return functional.cross_entropy(hidden[0], LABELS)


def convolutions() -> Any:
    layers = nn.Sequential(
        nn.Conv2d(1, B, 3), nn.BatchNorm2d(B), nn.ReLU(), nn.Flatten(), nn.LazyLinear(B)
    )
    return functional.cross_entropy(layers(SEQUENCE[:, None]), LABELS)


def weight_norms() -> Any:
    layers = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(D, B)),
        parametrizations.spectral_norm(nn.Linear(B, B)),
    )
    return functional.cross_entropy(layers(SEQUENCE[0]), LABELS)


def low_rank() -> Any:
    """LoRA."""
    base, down, up = nn.Linear(D, B), nn.Linear(D, 2), nn.Linear(2, B)
    base.requires_grad_(False)
    return functional.cross_entropy(base(SEQUENCE[0]) + up(down(SEQUENCE[0])), LABELS)


def merged_low_rank() -> Any:
    down, up = nn.Parameter(torch.randn(2, D)), nn.Parameter(torch.randn(B, 2))
    weight = torch.randn(B, D) + up @ down
    return functional.cross_entropy(functional.linear(SEQUENCE[0], weight), LABELS)


def rms_norm() -> Any:
    scale, output = nn.Parameter(torch.ones(D)), ONE(DATA)
    return (scale * output * output.pow(2).mean(-1, keepdim=True).rsqrt()).pow(2).mean()


def masked_words() -> Any:
    scores, mask = nn.Linear(D, 9)(SEQUENCE), WORDS > 4
    return functional.cross_entropy(scores[mask], WORDS[mask])


def valid_rows() -> Any:
    return functional.cross_entropy(ONE(DATA)[torch.tensor([0, 2, 3])], LABELS[:3])


def chosen_actions() -> Any:
    return -(ONE(DATA).log_softmax(1)[torch.arange(B), LABELS] * torch.rand(B)).mean()


def own_weights() -> Any:
    losses = functional.cross_entropy(ONE(DATA), LABELS, reduction="none")
    return (losses * torch.full((B,), 1 / B)).sum()


def penalised() -> Any:
    penalty = sum(parameter.abs().sum() for parameter in ONE.parameters())
    return functional.cross_entropy(ONE(DATA), LABELS) + 1e-3 * penalty


def penalised_plainly() -> Any:
    return functional.cross_entropy(ONE(DATA), LABELS) + ONE.weight.pow(2).sum()


def orthogonality() -> Any:
    gram = ONE.weight @ ONE.weight.T
    return functional.cross_entropy(ONE(DATA), LABELS) + (gram - torch.eye(D)).pow(2).mean()


def style() -> Any:
    features = nn.Conv1d(B, D, 3)(SEQUENCE)
    return (features @ features.transpose(1, 2)).pow(2).mean()


def diffusion() -> Any:
    places, times = nn.Embedding(B, D), nn.Linear(1, D)
    hidden = SEQUENCE + places(torch.arange(B)) + times(torch.rand(B, 1))[:, None]
    return functional.mse_loss(nn.Linear(D, D)(hidden), SEQUENCE)


def pairs_given() -> Any:
    return functional.cosine_embedding_loss(one(), other(), torch.ones(B))


def triplets_given() -> Any:
    return functional.triplet_margin_loss(one(), other(), ONE(torch.randn(B, 5)))


def masked_mean() -> Any:
    losses = functional.cross_entropy(ONE(DATA), LABELS, reduction="none")
    mask = (LABELS > 0).float()
    return (losses * mask).sum() / mask.sum()


HEALTHY: list[Callable[[], Any]] = [
    attention,
    attention_by_hand,
    tied_weights,
    matrix_factorisation,
    lstm,
    lstm_cell,
    convolutions,
    weight_norms,
    low_rank,
    merged_low_rank,
    rms_norm,
    masked_words,
    valid_rows,
    chosen_actions,
    own_weights,
    penalised,
    penalised_plainly,
    orthogonality,
    style,
    diffusion,
    pairs_given,
    triplets_given,
    masked_mean,
    lambda: nn.CosineEmbeddingLoss()(one(), other(), torch.ones(B)),
    lambda: functional.cross_entropy(ONE(DATA), LABELS, reduction="none").mean(),
    lambda: functional.cross_entropy(ONE(DATA), LABELS, reduction="sum") / B,
]


@pytest.mark.parametrize("loss", HEALTHY, ids=lambda loss: str(loss.__name__))
def test_healthy_losses_are_left_alone(loss: Callable[[], Any]) -> None:
    assert not of_loss(loss(), samples=B)


# Sums, hooks, scripts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        lambda: functional.cross_entropy(ONE(DATA), LABELS, reduction="sum"),
        lambda: functional.cross_entropy(ONE(DATA), LABELS, reduction="none").sum(),
        lambda: functional.mse_loss(ONE(DATA), torch.ones(B, D), reduction="none").sum((0, 1)),
        lambda: (ONE(DATA) - 1).pow(2).sum(),
        lambda: 0.5 * functional.l1_loss(ONE(DATA), torch.ones(B, D)) + ONE(DATA).pow(2).sum(),
        lambda: (0.5 * (ONE(DATA) - 1).pow(2)).sum(),
        lambda: -ONE(DATA).log_softmax(1)[torch.arange(B), LABELS].sum(),
    ],
)
def test_sums_over_samples_are_named(loss: Callable[[], Any]) -> None:
    assert of_loss(loss(), samples=B).startswith("the loss is a sum over samples")


@pytest.mark.parametrize(
    "register",
    [
        lambda weight: weight.register_hook(lambda gradient: gradient.clamp(-1, 1)),
        lambda weight: weight.register_post_accumulate_grad_hook(
            lambda parameter: parameter.grad.clamp_(-1, 1)
        ),
    ],
)
def test_hooks_that_clamp_gradients_are_named(register: Callable[[Any], Any]) -> None:
    model = nn.Sequential(nn.Linear(2, 1))
    assert not of_hooks(model)
    handle = register(model[0].weight)
    assert "'0.weight'" in of_hooks(model)
    assert "clip_norm=" in of_hooks(model)
    handle.remove()
    assert not of_hooks(model)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("torch.nn.utils.clip_grad_norm_(model.parameters(), 1)", "clip_grad_norm_"),
        ("def f():\n    clip_grad_value_(model.parameters(), 1)", "clip_grad_value_"),
        ("from timm.utils import adaptive_clip_grad\nadaptive_clip_grad(p)", "adaptive_clip_grad"),
        ("import timm\ntimm.utils.dispatch_clip_grad(p, 1.0)", "dispatch_clip_grad"),
        ("model.clip_norm = 1", ""),
        ("not python (", ""),
    ],
)
def test_leftover_clipping_is_named(tmp_path: Any, text: str, name: str) -> None:
    script = tmp_path / "loop.py"
    script.write_text(text)
    message = of_script(str(script))
    assert (f"calls {name}, which finds no gradients" in message) if name else not message


# Buffers ------------------------------------------------------------------------------------------

BANK = torch.randn(4 * B, 3)


def changed(start: torch.Tensor, places: Any) -> tuple[torch.Tensor, torch.Tensor]:
    now = start.clone()
    now[places] += 1
    return start, now


@pytest.mark.parametrize(
    ("start", "now"),
    [
        pytest.param(torch.tensor([0]), torch.tensor([B]), id="pointer"),
        pytest.param(torch.tensor(7.0), torch.tensor(7.0 + B), id="samples seen"),
        pytest.param(*changed(BANK, slice(B)), id="queue by rows"),
        pytest.param(*changed(BANK.T, (slice(None), slice(B))), id="queue by columns"),
        pytest.param(*changed(torch.zeros(4 * B), 3 * torch.arange(B)), id="value per sample"),
    ],
)
def test_buffers_of_samples_are_named(start: torch.Tensor, now: torch.Tensor) -> None:
    assert "'kept'" in of_buffers([("kept", start, now)], samples=B)
    assert not of_buffers([("kept", start, now)], samples=B + 1)


@pytest.mark.parametrize(
    ("start", "now"),
    [
        pytest.param(torch.tensor(0), torch.tensor(1), id="batches seen"),
        pytest.param(BANK[:B], BANK[:B] + 1, id="average"),
        pytest.param(BANK, BANK, id="constant"),
        pytest.param(*changed(torch.zeros(B + 1), slice(B)), id="codes in use"),
        pytest.param(torch.zeros(B, dtype=torch.bool), torch.ones(B, dtype=torch.bool), id="mask"),
    ],
)
def test_buffers_of_averages_are_not_named(start: torch.Tensor, now: torch.Tensor) -> None:
    assert not of_buffers([("kept", start, now)], samples=B)
