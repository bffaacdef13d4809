"""Handwritten digits by Keras as a training file: brim train training_file.py --workers 1:4"""

import keras
import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

import brim


def model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10),
        ]
    )


def dataset(split):
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 8, 8, 1)
    rows = slice(1500) if split == "train" else slice(1500, None)
    return TensorDataset(images[rows], torch.tensor(labels)[rows])


def loss(output, target):
    return torch.nn.functional.cross_entropy(output, target)


def optimizer(model):
    return keras.optimizers.AdamW(1e-2)


def metrics():
    return {"accuracy": brim.metrics.accuracy(), "log_loss": brim.metrics.log_loss()}
