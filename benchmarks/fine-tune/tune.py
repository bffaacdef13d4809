"""Tunes a GPT of 6 million weights, by brim's Trainer or by transformers' own.

    python tune.py brim|transformers lora|full FOLDER

Each committed step is a line in FOLDER/steps.jsonl, written by the first worker. transformers' own
Trainer goes on from its last checkpoint in FOLDER, where there is one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

STEPS, BATCH, LENGTH, WORDS, SAVED_EVERY = 25, 8, 32, 4096, 10


class Noting(TrainerCallback):  # type: ignore[misc]
    """Notes when each step was committed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "steps.jsonl"

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            line = json.dumps({"at": time.time(), "step": state.global_step, "pid": os.getpid()})
            with self._path.open("a") as file:
                file.write(line + "\n")


def model(weights: str) -> Any:
    """The GPT, with LoRA of rank 8 on all linear layers of its blocks, or with all its weights."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=256, n_layer=6, n_head=8, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    base = GPT2LMHeadModel(config)
    if weights == "full":
        return base
    layers = ["c_attn", "c_proj", "c_fc"]
    lora = LoraConfig(r=8, target_modules=layers, fan_in_fan_out=True, task_type="CAUSAL_LM")
    return get_peft_model(base, lora)


def samples() -> list[dict[str, torch.Tensor]]:
    """Enough sentences of random words for all steps."""
    chance = torch.Generator().manual_seed(0)
    words = torch.randint(WORDS, (STEPS * BATCH, LENGTH), generator=chance)
    return [{"input_ids": row, "labels": row} for row in words]


def arguments(folder: Path, *, workers: int) -> TrainingArguments:
    """Arguments for steps of 8 samples, however many processes share them."""
    return TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH // workers,
        max_steps=STEPS,
        learning_rate=1e-3,
        save_steps=SAVED_EVERY,
        logging_steps=STEPS,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )


def main() -> None:
    library, weights, place = sys.argv[1:]
    folder = Path(place)
    torch.set_num_threads(1)
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    kind: Any = Trainer
    options: dict[str, Any] = {}
    if library == "brim":
        import brim

        kind, options = brim.transformers.Trainer, {"join_options": {"micro_batches": 2}}
    trainer = kind(
        model(weights),
        arguments(folder, workers=workers),
        train_dataset=samples(),
        callbacks=[Noting(folder)],
        **options,
    )
    last = get_last_checkpoint(str(folder)) if library == "transformers" else None
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
