"""Click models as published.

DLRM (facebookresearch/dlrm), NCF (he2017neural), DeepFM and two towers of brim.models.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from toys import clicks

import brim
from brim import models, param
from brim.data.encoding import SequencePlaces


class DLRM(nn.Module):
    def __init__(self, fields=4, words=10, numbers=3, dim=8):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(words, dim, mode="sum") for _ in range(fields))
        self.bottom = nn.Sequential(nn.Linear(numbers, dim), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(dim + 10, 8), nn.ReLU(), nn.Linear(8, 1))
        self.pairs = torch.tril_indices(fields + 1, fields + 1, -1)

    def forward(self, inputs):
        categories, numbers = inputs
        dense = self.bottom(numbers)
        scores = torch.stack(
            [dense, *(bag(c.unsqueeze(1)) for bag, c in zip(self.bags, categories.T, strict=True))],
            1,
        )
        dots = (scores @ scores.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([dense, dots], 1)).flatten()


class NCF(nn.Module):
    """Neural collaborative filtering: matrix factorisation beside a perceptron over (user,
    item).
    """

    def __init__(self, words=10, dim=8):
        super().__init__()
        self.user_mf, self.item_mf = nn.Embedding(words, dim), nn.Embedding(words, dim)
        self.user_mlp, self.item_mlp = nn.Embedding(words, dim), nn.Embedding(words, dim)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Dropout(0.1))
        self.last = nn.Linear(2 * dim, 1)

    def forward(self, inputs):
        user, item = inputs[0][:, 0], inputs[0][:, 1]
        deep = self.mlp(torch.cat([self.user_mlp(user), self.item_mlp(item)], 1))
        return self.last(torch.cat([self.user_mf(user) * self.item_mf(item), deep], 1)).flatten()


class Pairwise(torch.utils.data.Dataset):
    """((categories, numbers), clicked)."""

    def __init__(self, count):
        self.columns = TensorDataset(*clicks(count))

    def __len__(self):
        return len(self.columns)

    def __getitem__(self, index):
        categories, numbers, clicked = self.columns[index]
        return (categories, numbers), clicked


class Fields(nn.Module):
    """A click model of brim over one vocabulary for all fields."""

    def __init__(self, kind=models.DeepFM):
        super().__init__()
        self.inner = kind(40, 4, 3, dim=8, hidden=(8,))
        self.register_buffer("starts", torch.arange(4) * 10)

    def forward(self, inputs):
        return self.inner({"ids": inputs[0] + self.starts, "numbers": inputs[1]})


class Interest(nn.Module):
    """DIN of brim: a film, three films of before, of which some are none."""

    def __init__(self, words=10):
        super().__init__()
        history = SequencePlaces(name="history", start=1, length=3, padding=0, candidate=0)
        self.inner = models.DIN(words, 4, 3, dim=8, hidden=(8,), sequences=(history,))

    def forward(self, inputs):
        return self.inner({"ids": inputs[0], "numbers": inputs[1]})


class Both(nn.Module):
    """PLE of brim, the mean of its two targets."""

    def __init__(self):
        super().__init__()
        self.inner = models.PLE(40, 4, 3, targets=2, dim=8, expert=(8,), hidden=(8,))
        self.register_buffer("starts", torch.arange(4) * 10)

    def forward(self, inputs):
        logits = self.inner({"ids": inputs[0] + self.starts, "numbers": inputs[1]})
        return logits.mean(1)


class Towers(nn.Module):
    """Two towers of brim: two fields of the user, two of the item."""

    def __init__(self, words=10, counts=None):
        super().__init__()
        self.inner = models.TwoTower(
            4 * words, 2, 2, dim=8, units=(8, 4), dropout=0.1, counts=counts
        )
        self.register_buffer("starts", torch.arange(4) * words)

    def forward(self, inputs):
        return self.inner({"ids": inputs[0] + self.starts})


MADE = {
    "dcn_v2": lambda: Fields(models.DCNV2),
    "deepfm": Fields,
    "din": Interest,
    "dlrm": DLRM,
    "final_mlp": lambda: Fields(models.FinalMLP),
    "large_din": lambda: Interest(words=140_000),
    "large_dlrm": lambda: DLRM(words=140_000),
    "large_ncf": lambda: NCF(words=140_000),
    "large_two_tower": lambda: Towers(words=40_000, counts=torch.arange(160_000)),
    "ncf": NCF,
    "ple": Both,
    "two_tower": Towers,
}
KIND = param("kind", "dlrm")


def model():
    return MADE[KIND]()


def dataset(split):
    return Pairwise(120 if split == "train" else 40)


loss = models.in_batch_softmax if KIND == "large_two_tower" else F.binary_cross_entropy_with_logits


def optimizer(model):
    return torch.optim.Adagrad(model.parameters(), lr=0.05)


def metrics():
    return {"auc": brim.metrics.auc()}
