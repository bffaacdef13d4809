"""A Keras model in a loop of one's own: the layers that change or draw something."""

import sys

import brim.keras  # chooses Keras' torch backend  # isort: skip
import keras
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from toys import clicks, images, sentences

import brim

KIND, OPTIMIZER = sys.argv[1], sys.argv[2]
L = keras.layers
keras.utils.set_random_seed(1)


class Tower(keras.Model):
    """A model of one's own class, with a layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.flat, self.wide, self.noise = L.Flatten(), L.Dense(16), L.GaussianNoise(0.1)
        self.norm, self.head = L.BatchNormalization(), L.Dense(4)

    def call(self, pictures, training=False):
        flat = self.noise(self.flat(pictures), training=training)
        both = self.wide(flat) + self.wide(-flat)
        return self.head(self.norm(both, training=training))


class Within(torch.nn.Module):
    """A module of torch with layers of Keras."""

    def __init__(self):
        super().__init__()
        self.flat, self.wide = torch.nn.Flatten(), torch.nn.Linear(64, 16)
        self.norm, self.drop, self.head = L.BatchNormalization(), L.Dropout(0.2), L.Dense(4)

    def forward(self, pictures, training=False):
        known = self.norm(self.wide(self.flat(pictures)), training=training)
        return self.head(self.drop(known, training=training))


def pictures(*layers):
    """A model of pictures [8, 8, 1] with four classes."""
    return keras.Sequential([L.Input((8, 8, 1)), *layers, L.Flatten(), L.Dense(4)])


def attention():
    words = L.Input((9,), dtype="int32")
    known = L.Embedding(12, 8)(words)
    mixed = L.LayerNormalization()(known + L.MultiHeadAttention(2, 4, dropout=0.1)(known, known))
    return keras.Model(words, L.Dense(12)(mixed))


def network():
    match KIND:
        case "norm":
            return pictures(
                L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU(), L.Dropout(0.2, seed=3)
            )
        case "augmented":
            return pictures(
                L.RandomFlip(), L.RandomRotation(0.1), L.RandomTranslation(0.1, 0.1), L.Conv2D(4, 3)
            )
        case "frozen":
            return pictures(L.Conv2D(4, 3, trainable=False), L.BatchNormalization(), L.ReLU())
        case "half":
            keras.config.set_dtype_policy("mixed_bfloat16")
            return pictures(L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU())
        case "recurrent":
            cells = [L.LSTM(8, dropout=0.1, recurrent_dropout=0.1, return_sequences=True), L.GRU(8)]
            return keras.Sequential(
                [L.Input((9,)), L.Embedding(12, 8), *map(L.Bidirectional, cells), L.Dense(12)]
            )
        case "attention":
            return attention()
        case "clicks":
            return keras.Sequential([L.Input((4,)), L.Embedding(10, 4), L.Flatten(), L.Dense(1)])
    model = Within() if KIND == "within" else Tower()
    model(torch.zeros(2, 8, 8, 1))
    return model


def data():
    if KIND == "recurrent":
        text = sentences()
        return TensorDataset(text[:, :9], text[:, 9])
    if KIND == "attention":
        text = sentences()
        return TensorDataset(text[:, :9], text[:, 1:])
    if KIND == "clicks":
        categories, _, clicked = clicks()
        return TensorDataset(categories, clicked)
    shown, labels = images(120).tensors
    return TensorDataset(shown.permute(0, 2, 3, 1), labels)


def loss_of(output, target):
    if KIND == "clicks":
        return F.binary_cross_entropy_with_logits(output.squeeze(1), target)
    return F.cross_entropy(output.float().reshape(-1, output.shape[-1]), target.reshape(-1))


model = network()
of_torch = torch.optim.Adam(model.parameters(), lr=1e-2)
job = brim.join(model, of_torch if OPTIMIZER == "torch" else keras.optimizers.get(OPTIMIZER))
for batch in job.batches(data(), global_batch_size=24, epochs=2):
    job.step(loss_of(model(batch.inputs, training=True), batch.target))
