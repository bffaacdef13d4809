"""BERT-like classification: samples are dicts of input_ids, attention_mask and labels; AdamW with
warm-up per step.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from toys import sentences


class Sentences(Dataset):
    def __init__(self, count):
        self.text = sentences(count)

    def __len__(self):
        return len(self.text)

    def __getitem__(self, index):
        length = 4 + index % 6
        mask = torch.arange(10) < length
        inputs = {"input_ids": self.text[index] * mask, "attention_mask": mask}
        return inputs, self.text[index, 0] % 2


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(12, 16), nn.Embedding(10, 16)
        self.norm = nn.LayerNorm(16)
        layer = nn.TransformerEncoderLayer(
            16, 2, 32, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classifier = nn.Linear(16, 2)
        self.register_buffer("position_ids", torch.arange(10), persistent=False)

    def forward(self, inputs):
        hidden = self.norm(self.words(inputs["input_ids"]) + self.places(self.position_ids))
        hidden = self.encoder(hidden, src_key_padding_mask=~inputs["attention_mask"])
        return self.classifier(hidden[:, 0])


def model():
    return Bert()


def dataset(split):
    return Sentences(120 if split == "train" else 40)


loss = F.cross_entropy


def optimizer(model):
    plain = [p for n, p in model.named_parameters() if "bias" in n or "norm" in n]
    decayed = [p for n, p in model.named_parameters() if not ("bias" in n or "norm" in n)]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=5e-4)
    warm_up = torch.optim.lr_scheduler.LambdaLR(adamw, lambda step: min(1.0, (step + 1) / 4))
    return adamw, warm_up, "step"
