"""Which word comes next? An LSTM whose rows read the text in its order, and whose gradient is clipped."""

import math

import torch
from accelerate import Accelerator
from prose import prose
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader


class LanguageModel(nn.Module):
    def __init__(self, words, width=32):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.Linear(width, words)
        self.decoder.weight = self.encoder.weight  # tied

    def forward(self, tokens):
        output, _ = self.rnn(self.drop(self.encoder(tokens)))
        return self.decoder(self.drop(output))


def main():
    torch.manual_seed(1111)
    corpus, words = prose()
    loader = DataLoader(corpus, batch_size=16, shuffle=False)
    model = LanguageModel(words)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(4):
        total = 0.0
        for tokens, target in loader:
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            total += accelerator.reduce(loss.detach(), "mean").item()
        accelerator.print(f"epoch {epoch}: perplexity {math.exp(total / len(loader)):.1f}")


if __name__ == "__main__":
    main()
