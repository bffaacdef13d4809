"""Trains all weights of a small GPT on Python's reference manual, and saves it in `base`."""

import torch
from texts import LENGTH, LETTERS, manual, windows
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from brim.transformers import Trainer

SIZE = {"n_embd": 96, "n_layer": 2, "n_head": 4}


def main():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(LETTERS) + 1, n_positions=LENGTH, bos_token_id=0, eos_token_id=0, **SIZE
    )
    args = TrainingArguments(
        output_dir="base",
        per_device_train_batch_size=16,
        max_steps=100,
        learning_rate=5e-3,
        warmup_steps=10,
        logging_steps=25,
        report_to=[],
    )
    Trainer(GPT2LMHeadModel(config), args, train_dataset=windows(manual(), LENGTH // 2)).train()


if __name__ == "__main__":
    main()
