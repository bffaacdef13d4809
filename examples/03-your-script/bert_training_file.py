"""The model of bert_plain.py as a training file, for `brim train`, `brim evaluate` and `brim predict`.

brim train bert_training_file.py --global-batch-size 32 --epochs 3
"""

import torch
from bert_plain import sentences
from transformers import BertConfig, BertForSequenceClassification

import brim


def model():
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    return BertForSequenceClassification(config)


def dataset(split):
    samples = sentences(192, seed=1) if split == "train" else sentences(96, seed=2)
    return [(sample, sample["labels"]) for sample in samples]


def forward(model, inputs):
    return model(**inputs)


def loss(output, target):
    return output.loss


def optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=brim.param("lr", 2e-3))
