"""An autoencoder, a graph network with a sparse adjacency (pygcn), a char-RNN: well-known in a few
lines each.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from toys import images, sentences

from brim import param

KIND = param("kind", "autoencoder")


class Autoencoder(nn.Module):
    """lightning's first example: encoder and decoder of MNIST."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 64))

    def forward(self, x):
        return self.decoder(self.encoder(x.flatten(1)))


class GCN(nn.Module):
    """tkipf/pygcn: all nodes in each pass, samples name the nodes whose classes count."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        edges = torch.randint(120, (2, 500), generator=generator)
        degree = torch.bincount(edges[0], minlength=120).clamp(min=1)
        adjacency = torch.sparse_coo_tensor(edges, 1.0 / degree[edges[0]], (120, 120)).coalesce()
        if KIND == "gcn_buffer":
            self.register_buffer("adjacency", adjacency)
        else:
            self.adjacency = adjacency
        self.register_buffer("features", images(120).tensors[0].flatten(1))
        self.gc1, self.gc2 = nn.Linear(64, 16), nn.Linear(16, 4)

    def forward(self, nodes):
        hidden = F.relu(torch.sparse.mm(self.adjacency, self.gc1(self.features)))
        hidden = F.dropout(hidden, 0.5, training=self.training)
        return torch.sparse.mm(self.adjacency, self.gc2(hidden))[nodes]


class CharRNN(nn.Module):
    """karpathy/char-rnn: a GRU over characters."""

    def __init__(self):
        super().__init__()
        self.embed, self.gru, self.out = (
            nn.Embedding(12, 8),
            nn.GRU(8, 16, batch_first=True),
            nn.Linear(16, 12),
        )

    def forward(self, text):
        return self.out(self.gru(self.embed(text))[0])


def model():
    return {"autoencoder": Autoencoder, "gcn": GCN, "gcn_buffer": GCN, "char_rnn": CharRNN}[KIND]()


def dataset(split):
    count = 120 if split == "train" else 40
    if KIND == "char_rnn":
        text = sentences(count)
        return TensorDataset(text[:, :-1], text[:, 1:])
    pictures, labels = images(count).tensors
    if KIND == "autoencoder":
        return TensorDataset(pictures, pictures)
    return TensorDataset(torch.arange(count), labels)


def loss(output, target):
    if KIND == "autoencoder":
        return F.mse_loss(output, target.flatten(1))
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


def optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4, fused=True)
