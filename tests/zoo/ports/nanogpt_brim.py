"""karpathy/nanoGPT, train.py: batches drawn from one text, accumulated gradients, get_lr by step."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import RandomSampler

import brim

batch_size = 4
block_size = 8
gradient_accumulation_steps = 4
max_iters = 10
learning_rate, min_lr = 1e-2, 1e-3
warmup_iters, lr_decay_iters = 2, 10
grad_clip = 1.0
vocab_size, n_embd, n_head = 16, 16, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 32), nn.GELU(), nn.Linear(32, n_embd), nn.Dropout(0.1)
        )

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(B, T, 3, n_head, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.Sequential(Block(), Block())
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        x = self.h(self.wte(idx) + self.wpe(torch.arange(idx.shape[1])))
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))

    def configure_optimizers(self):
        decay = [p for p in self.parameters() if p.dim() >= 2]
        nodecay = [p for p in self.parameters() if p.dim() < 2]
        groups = [
            {"params": decay, "weight_decay": 0.1},
            {"params": nodecay, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    decay_ratio = min(1.0, (it - warmup_iters) / (lr_decay_iters - warmup_iters))
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * decay_ratio)) * (learning_rate - min_lr)


torch.manual_seed(1337)
data = torch.arange(600) * 7 % vocab_size
windows = [
    (data[i : i + block_size], data[i + 1 : i + 1 + block_size])
    for i in range(len(data) - block_size)
]
model = GPT()
optimizer = model.configure_optimizers()
job = brim.join(model, optimizer, micro_batches=gradient_accumulation_steps, clip_norm=grad_clip)
step_size = batch_size * gradient_accumulation_steps
drawn = RandomSampler(windows, replacement=True, num_samples=max_iters * step_size)
for X, Y in job.batches(windows, global_batch_size=step_size, sampler=drawn):
    lr = get_lr(job.committed)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    _logits, loss = model(X, Y)
    if (mean := job.step(loss)) is not None:
        print(f"iter {job.committed}: loss {mean:.4f}")
