"""The models: shapes, gradients, and the algebra that their fast forms rely on."""

import subprocess
import sys

import pytest
import torch

from brim.models import DeepFM, SmallCNN, TwoTower, WideDeep, XDeepFM, in_batch_softmax
from brim.models.deepfm import _pairs
from brim.models.layers import EmbeddingTable
from brim.models.xdeepfm import CompressedInteractions

CLICK_MODELS = [WideDeep, DeepFM, XDeepFM]


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
    network, x = CompressedInteractions(4, (6, 4)), torch.randn(200, 4, 3)
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
