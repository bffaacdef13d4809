"""The full training loop of Hugging Face's course: get_scheduler, device moves, a bar of progress."""

import torch
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    get_scheduler,
)
from transformers.utils import logging


class Tokenizer:
    """Stands in for AutoTokenizer, whose vocabulary would be downloaded."""

    def pad(self, features, **_):
        longest = max(len(feature["input_ids"]) for feature in features)
        filled = [
            feature["input_ids"] + [0] * (longest - len(feature["input_ids"]))
            for feature in features
        ]
        ids = torch.tensor(filled)
        labels = torch.tensor([feature["label"] for feature in features])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


def sentences(count, seed):
    """Stands in for GLUE's MRPC, tokenized: lists of ids, of various lengths."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        length = int(torch.randint(4, 9, (1,), generator=generator))
        low = 1 + 20 * (number % 2)
        ids = torch.randint(low, low + 30, (length,), generator=generator).tolist()
        found.append({"input_ids": ids, "label": number % 2})
    return found


logging.disable_progress_bar()
torch.manual_seed(42)
data_collator = DataCollatorWithPadding(tokenizer=Tokenizer())
train_dataloader = DataLoader(
    sentences(96, 0), shuffle=True, batch_size=16, collate_fn=data_collator
)
eval_dataloader = DataLoader(sentences(32, 1), batch_size=16, collate_fn=data_collator)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
)
optimizer = AdamW(model.parameters(), lr=5e-3)
num_epochs = 2
num_training_steps = num_epochs * len(train_dataloader)
lr_scheduler = get_scheduler(
    "linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=num_training_steps
)
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
model.to(device)

model.train()
for epoch in range(num_epochs):
    for batch in train_dataloader:
        batch = {k: v.to(device) for k, v in batch.items()}
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()

        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()

model.eval()
correct = 0
for batch in eval_dataloader:
    batch = {k: v.to(device) for k, v in batch.items()}
    with torch.no_grad():
        outputs = model(**batch)
    predictions = torch.argmax(outputs.logits, dim=-1)
    correct += int((predictions == batch["labels"]).sum())
print(f"accuracy {correct / len(eval_dataloader.dataset):.3f}")
