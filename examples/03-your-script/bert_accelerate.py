"""Which of two topics is a sentence about? A small BERT, with a warm-up of the learning rate."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


def sentences(samples, seed):
    """What a tokenizer gives: the second topic has the higher token numbers more often."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (samples,), generator=generator)
    low = torch.randint(5, 40, (samples, 12), generator=generator)
    high = torch.randint(20, 60, (samples, 12), generator=generator)
    ids = torch.where(labels[:, None] == 1, high, low)
    columns = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    return [{name: column[index] for name, column in columns.items()} for index in range(samples)]


def main():
    torch.manual_seed(42)
    loader = DataLoader(sentences(192, seed=1), batch_size=32, shuffle=True)
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, 3 * len(loader))
    accelerator = Accelerator()
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    for epoch in range(3):
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
