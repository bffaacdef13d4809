"""The models: shapes, gradients, and the algebra that their fast forms rely on."""

import subprocess
import sys

import pytest
import torch

from brim.data.encoding import SequencePlaces
from brim.models import (
    DCNV2,
    DIN,
    PLE,
    DeepFM,
    FinalMLP,
    MMoE,
    SmallCNN,
    TwoTower,
    WideDeep,
    XDeepFM,
    in_batch_softmax,
)
from brim.models.deepfm import _pairs
from brim.models.layers import EmbeddingTable
from brim.models.xdeepfm import CompressedInteractions

CLICK_MODELS = [WideDeep, DeepFM, XDeepFM, DCNV2, FinalMLP, DIN]
# Of six ids, the second to the fourth are items of the first, and the last two have ids of their own.
SEQUENCES = (
    SequencePlaces(name="history", start=1, length=3, padding=0, candidate=0),
    SequencePlaces(name="tags", start=4, length=2, padding=40, candidate=None),
)


def inputs(samples: int, fields: int, numbers: int) -> dict[str, torch.Tensor]:
    batch = {"ids": torch.randint(0, 50, (samples, fields))}
    return batch | ({"numbers": torch.randn(samples, numbers)} if numbers else {})


@pytest.mark.parametrize("make", CLICK_MODELS)
@pytest.mark.parametrize("numbers", [0, 3])
@pytest.mark.parametrize("samples", [1, 8])
def test_click_models_give_logits_and_gradients(
    make: type[torch.nn.Module], numbers: int, samples: int
) -> None:
    model = make(50, 5, numbers, dim=4, hidden=(8, 4), dropout=0.1)
    logits = model(inputs(samples, 5, numbers))
    assert logits.shape == (samples,)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("make", CLICK_MODELS)
def test_logits_do_not_depend_on_the_batch(make: type[torch.nn.Module]) -> None:
    model, batch = make(50, 5, 2), inputs(6, 5, 2)
    logits_alone = torch.cat(
        [model({name: part[i : i + 1] for name, part in batch.items()}) for i in range(6)]
    )
    torch.testing.assert_close(model(batch), logits_alone)


@pytest.mark.parametrize("make", CLICK_MODELS)
def test_hidden_units_are_normalised_by_batch(make: type[torch.nn.Module]) -> None:
    model, batch = make(50, 5, 2, dropout=0.5, batch_norm=True), inputs(64, 5, 2)
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Sequential)]
    norms = [
        [type(part).__name__ for part in layer]
        for layer in layers
        if any(isinstance(part, torch.nn.BatchNorm1d) for part in layer)
    ]
    hidden = ["Linear", "BatchNorm1d", "ReLU", "Dropout"] * 2
    assert norms
    assert all(parts[: len(hidden)] == hidden for parts in norms)
    assert not torch.equal(
        model(batch)[:1], model({key: part[:9] for key, part in batch.items()})[:1]
    )
    model.eval()
    logits = model(batch)
    torch.testing.assert_close(model({key: part[:9] for key, part in batch.items()}), logits[:9])


@pytest.mark.parametrize("make", CLICK_MODELS)
def test_padding_of_sequences_counts_for_nothing(make: type[torch.nn.Module]) -> None:
    model = make(50, 6, dim=4, hidden=(8, 4), sequences=SEQUENCES)
    ids = torch.tensor([[3, 5, 6, 0, 41, 40], [3, 0, 0, 0, 40, 40]])
    logits = model({"ids": ids})
    with torch.no_grad():
        for table in (part for part in model.modules() if isinstance(part, EmbeddingTable)):
            table.weight[[0, 40]] = 1e3
    torch.testing.assert_close(model({"ids": ids}), logits)
    swapped = ids[:, [0, 2, 1, 3, 4, 5]]
    torch.testing.assert_close(model({"ids": swapped})[0], logits[0])  # the order of items neither
    model({"ids": ids}).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_din_weighs_items_by_the_candidate() -> None:
    model = DIN(50, 6, dim=4, hidden=(8,), sequences=SEQUENCES)
    assert isinstance(model.embedding, EmbeddingTable)
    table, attention = model.embedding.weight, next(iter(model.attentions))
    candidate, items = table[3], table[[5, 6]]
    weights = [
        attention(torch.cat([candidate, item, candidate - item, candidate * item])[None])
        for item in items
    ]
    interest = weights[0] * items[0] + weights[1] * items[1]
    expected = model.deep(torch.cat([candidate, interest, table[[41, 42]].mean(0)])[None])
    ids = torch.tensor([[3, 5, 6, 0, 41, 42]])
    torch.testing.assert_close(model({"ids": ids}), expected)


def test_crosses_are_those_of_the_paper() -> None:
    model = DCNV2(50, 2, dim=2, hidden=(), crosses=2).double()
    ids = torch.tensor([[3, 7]])
    x = model.embedding(ids).flatten()
    first, second = (cross for cross in model.crosses if isinstance(cross, torch.nn.Linear))
    one = x * (first.weight @ x + first.bias) + x
    two = x * (second.weight @ one + second.bias) + one
    torch.testing.assert_close(model({"ids": ids}), model.output(two))


def test_fusion_multiplies_the_streams_by_heads() -> None:
    model = FinalMLP(50, 3, dim=2, hidden=(8, 4), contexts=((0,), (1, 2)), heads=2).double()
    ids = torch.tensor([[3, 7, 9]])
    embedded = model.embedding(ids)
    flat = embedded.flatten(1)
    streams = []
    for stream, context in zip(model.streams, ([0], [1, 2]), strict=True):
        assert isinstance(stream.gate, torch.nn.Module)
        assert isinstance(stream.deep, torch.nn.Module)
        gates = 2 * torch.sigmoid(stream.gate(embedded[:, context].flatten(1)))
        streams.append(stream.deep(gates * flat)[0])
    left, right = streams
    expected = sum(output(part) for output, part in zip(model.outputs, streams, strict=True))
    for head, matrix in enumerate(model.fusion):
        part = slice(2 * head, 2 * head + 2)
        expected = expected + left[part] @ matrix @ right[part]
    torch.testing.assert_close(model({"ids": ids}), expected)
    with pytest.raises(ValueError, match="heads=3 is no divisor"):
        FinalMLP(50, 3, heads=3)


@pytest.mark.parametrize("kind", [MMoE, PLE])
def test_targets_share_experts_and_keep_their_own(kind: type[torch.nn.Module]) -> None:
    # So wide that no layer is without a unit that its ReLU lets through.
    model = kind(50, 6, 2, targets=3, dim=4, expert=(64,), hidden=(64,), sequences=SEQUENCES)
    batch = inputs(5, 6, 2)
    logits = model(batch)
    assert logits.shape == (5, 3)

    def changed(name: str) -> list[bool]:
        """Return for which targets a parameter counts."""
        parameter = model.get_parameter(name)
        with torch.no_grad():
            kept = parameter.clone()
            parameter.copy_(kept + torch.randn_like(kept))
            moves = (model(batch) - logits).abs().sum(0).tolist()
            parameter.copy_(kept)
        return [move > 0 for move in moves]

    assert changed("towers.2.0.weight") == [False, False, True]
    if kind is MMoE:
        assert changed("gates.1.weight") == [False, True, False]
        assert changed("experts.3.0.weight") == [True, True, True]
    else:
        assert changed("levels.1.own.1.0.0.weight") == [False, True, False]
        assert changed("levels.1.gates.0.weight") == [True, False, False]
        assert changed("levels.1.shared.0.0.weight") == [True, True, True]
        # Of the first level, the shared gate passes every expert on to all.
        assert changed("levels.0.own.1.0.0.weight") == [True, True, True]


def test_no_hidden_layer_is_a_linear_perceptron() -> None:
    assert WideDeep(50, 5, hidden=())(inputs(3, 5, 0)).shape == (3,)


def test_the_table_is_an_embedding() -> None:
    table, ids = EmbeddingTable(20, 3), torch.randint(0, 20, (7, 4))
    plain = torch.nn.Embedding.from_pretrained(table.weight.detach().clone(), freeze=False)
    assert torch.equal(table(ids), plain(ids))
    scale = torch.randn(7, 4, 3)
    (table(ids) * scale).sum().backward()
    (plain(ids) * scale).sum().backward()
    torch.testing.assert_close(table.weight.grad, plain.weight.grad)
    assert table.weight.std() < 0.02


def test_deepfm_sums_the_products_of_all_pairs() -> None:
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    expected = sum((x[:, i] * x[:, j]).sum(1) for i in range(5) for j in range(i))
    torch.testing.assert_close(_pairs(x), expected)


def test_the_interactions_are_those_of_the_paper() -> None:
    fields, dim = 3, 2
    network = CompressedInteractions(fields, (4, 2)).double()
    x = torch.randn(5, fields, dim, dtype=torch.float64)
    first, second = network.mixers
    symmetric = torch.zeros(4, fields, fields, dtype=torch.float64)
    symmetric[:, network.pairs[0], network.pairs[1]] = first.detach()
    expected_interactions = torch.relu(torch.einsum("oij,bid,bjd->bod", symmetric, x, x))
    two = torch.relu(
        torch.einsum("oij,bid,bjd->bod", second.view(2, fields, 2), x, expected_interactions[:, :2])
    )
    pooled = torch.cat([expected_interactions[:, 2:].sum(2), two.sum(2)], 1)
    torch.testing.assert_close(network(x), network.output(pooled).squeeze(1))


def test_large_batches_interact_like_slices() -> None:
    network = CompressedInteractions(4, (6, 4)).double()
    x = torch.randn(200, 4, 3, dtype=torch.float64)
    torch.testing.assert_close(
        network(x), torch.cat([network(x[:1]), network(x[1:150]), network(x[150:])])
    )


def test_two_towers_score_users_and_items() -> None:
    model, ids = (
        TwoTower(50, 2, 3, dim=4, units=(8, 6), temperature=0.5),
        torch.randint(0, 50, (7, 5)),
    )
    logits = model({"ids": ids})
    expected = (model.users(ids[:, :2]) * model.items(ids[:, 2:])).sum(1) / 0.5
    assert torch.equal(logits, expected)
    assert logits.abs().max() <= 2.0 + 1e-6  # of cosines
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_in_batch_users_skip_duplicate_items() -> None:
    model = TwoTower(50, 1, 2, dim=4, units=(6,), counts=torch.arange(50))
    ids = torch.tensor(
        [[1, 10, 20], [2, 11, 20], [3, 10, 20]]
    )  # the first and the last have the same item
    scores = model({"ids": ids})
    assert scores.shape == (3, 3)
    assert scores.isinf().tolist() == [
        [False, False, True],
        [False, False, False],
        [True, False, False],
    ]
    cosines = model.users(ids[:, :1]) @ model.items(ids[:, 1:]).T
    is_shown = ~scores.isinf()
    expected = cosines / model.temperature - torch.tensor([10.0, 11.0, 10.0]).log()
    torch.testing.assert_close(scores[is_shown], expected[is_shown])
    in_batch_softmax(scores, torch.ones(3)).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    torch.testing.assert_close(model.eval()({"ids": ids}), cosines.diagonal() / model.temperature)


def test_the_in_batch_softmax_matches_the_paper() -> None:
    scores, rewards = torch.randn(4, 4, dtype=torch.float64), torch.tensor([1.0, 0.0, 2.0, 1.0])
    own_log_softmax = (scores.diagonal().exp() / scores.exp().sum(1)).log()
    torch.testing.assert_close(
        in_batch_softmax(scores, rewards), -(own_log_softmax * rewards).sum() / 4
    )


def test_the_cnn_classifies_images_of_28_by_28() -> None:
    model = SmallCNN(dropout=0.5)
    assert model(torch.randn(4, 1, 28, 28)).shape == (4, 10)
    assert any(name.endswith("running_mean") for name, _ in model.named_buffers())


def test_importing_brim_does_not_import_torch() -> None:
    code = "import sys, brim; sys.exit('torch' in sys.modules or 'pyarrow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
