"""A Keras model in a training file."""

import keras
import torch
from torch.utils.data import TensorDataset
from toys import images

import brim

L = keras.layers
KIND = brim.param("kind", "torch")


def model():
    penalty = keras.regularizers.L2(1e-3) if KIND == "regularizer" else None
    return keras.Sequential(
        [
            L.Input((8, 8, 1)),
            L.Conv2D(4, 3, kernel_regularizer=penalty),
            L.BatchNormalization(),
            L.ReLU(),
            L.Dropout(0.2),
            L.Flatten(),
            L.Dense(4),
        ]
    )


def dataset(split):
    shown, labels = images(120 if split == "train" else 300, seed=int(split == "test")).tensors
    return TensorDataset(shown.permute(0, 2, 3, 1), labels)


def loss(output, target):
    return torch.nn.functional.cross_entropy(output, target)


def optimizer(model):
    if KIND == "keras":
        return keras.optimizers.AdamW(1e-2, weight_decay=0.01)
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def metrics():
    return {"accuracy": brim.metrics.accuracy()}
