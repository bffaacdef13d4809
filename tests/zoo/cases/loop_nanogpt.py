"""karpathy/nanoGPT: tied weights, decay groups, get_lr by step, bf16 autocast if asked for,
clipped.
"""

import math
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from toys import sentences

import brim

WORDS, SIZE, HEADS, LENGTH = 12, 16, 2, 9


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = (
            nn.Linear(SIZE, 3 * SIZE, bias=False),
            nn.Linear(SIZE, SIZE, bias=False),
        )

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (
            t.view(B, T, HEADS, -1).transpose(1, 2) for t in self.c_attn(x).split(SIZE, dim=2)
        )
        dropped = 0.1 if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropped, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = (
            nn.LayerNorm(SIZE),
            CausalSelfAttention(),
            nn.LayerNorm(SIZE),
        )
        self.mlp = nn.Sequential(
            nn.Linear(SIZE, 32), nn.GELU(), nn.Linear(32, SIZE), nn.Dropout(0.1)
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, SIZE), nn.Embedding(LENGTH, SIZE)
        self.h = nn.Sequential(Block(), Block())
        self.lm_head = nn.Linear(SIZE, WORDS, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        x = self.h(self.wte(idx) + self.wpe(torch.arange(idx.shape[1])))
        return F.cross_entropy(self.lm_head(x).flatten(0, 1).float(), targets.flatten())


def get_lr(it, warmup_iters=3, lr_decay_iters=10, learning_rate=1e-2, min_lr=1e-3):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = min(1.0, (it - warmup_iters) / (lr_decay_iters - warmup_iters))
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


torch.manual_seed(1337)
model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
plain = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), fused=True)
text = sentences(120)
autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled="bf16" in sys.argv)

job = brim.join(model, optimizer, clip_norm=1.0)
for batch in job.batches(TensorDataset(text[:, :-1], text[:, 1:]), global_batch_size=24, epochs=2):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(job.committed)
    with autocast:
        loss = model(batch.inputs, batch.target)
    job.step(loss)
