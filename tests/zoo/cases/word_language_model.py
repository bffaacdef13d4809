"""pytorch/examples, word_language_model: an LSTM with tied weights, or a Transformer, clipped as
there.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from toys import sentences

from brim import param

WORDS, SIZE = 12, 16


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(WORDS, SIZE)
        self.rnn = nn.LSTM(SIZE, SIZE, 2, dropout=0.2, batch_first=True)
        self.decoder = nn.Linear(SIZE, WORDS)
        self.decoder.weight = self.encoder.weight
        self.register_buffer("hidden", torch.zeros(2, 2, 1, SIZE))

    def forward(self, text):
        begin = self.hidden.expand(2, 2, len(text), SIZE).contiguous()
        output, end = self.rnn(self.drop(self.encoder(text)), (begin[0], begin[1]))
        if param("kind", "lstm") == "carried":
            self.hidden = (
                torch.stack(end).mean(2, keepdim=True).detach()
            )  # and the data is not shuffled
        return F.log_softmax(self.decoder(self.drop(output)), dim=-1)


class TransformerModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(WORDS, SIZE)
        place = torch.arange(0, SIZE, 2) * (-math.log(10000.0) / SIZE)
        angle = torch.arange(9).unsqueeze(1) * place.exp()
        self.register_buffer("places", torch.stack([angle.sin(), angle.cos()], -1).flatten(1))
        layer = nn.TransformerEncoderLayer(SIZE, 2, 32, dropout=0.2, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.decoder = nn.Linear(SIZE, WORDS)

    def forward(self, text):
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        hidden = self.layers(
            self.encoder(text) * math.sqrt(SIZE) + self.places, mask, is_causal=True
        )
        return F.log_softmax(self.decoder(hidden), dim=-1)


def model():
    return {"lstm": RNNModel, "carried": RNNModel, "transformer": TransformerModel}[
        param("kind", "lstm")
    ]()


def dataset(split):
    text = sentences() if split == "train" else sentences(30, seed=1)
    data = TensorDataset(text[:, :-1], text[:, 1:])
    return DataLoader(data, batch_size=24) if param("kind", "lstm") == "carried" else data


def loss(output, target):
    return F.nll_loss(output.flatten(0, 1), target.flatten())


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=2.0)
