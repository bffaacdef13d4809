"""A small GPT of 30 million parameters, with tied weights, on random tokens in memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, TOKENS, WIDTH, LAYERS, HEADS = 9_000, 64, 512, 8, 8


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        samples, tokens, _ = hidden.shape
        parts = self.queries_keys_values(self.before_attention(hidden)).chunk(3, -1)
        q, k, v = (part.view(samples, tokens, HEADS, -1).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = hidden + self.out(seen.transpose(1, 2).reshape(samples, tokens, WIDTH))
        result: Tensor = hidden + self.mlp(self.before_mlp(hidden))
        return result


class SmallGPT(nn.Module):
    """Tokens [samples, TOKENS] to logits [samples × TOKENS, VOCABULARY];
    29.9 million parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(TOKENS, WIDTH))
        self.layers = nn.Sequential(*(_Layer() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.layers(self.tokens(inputs) + self.places))
        logits: Tensor = (hidden @ self.tokens.weight.T).flatten(0, 1)
        return logits
