"""Tunes adapters on a base of 49 million weights, and measures memory beside another such job.

    python tune.py make FOLDER                      # the base, as save_pretrained writes it
    python tune.py tune FOLDER MEETING JOBS         # by brim's Trainer

At step 12 each job waits until all have come there, and measures while they are. With COPY=1 the
base is copied behind its loading, as where it is converted to another type.
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
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

import brim

STEPS, MEASURED, BATCH, LENGTH, WORDS = 14, 12, 8, 16, 8192
PATIENCE = 300.0  # seconds for the other jobs


def make(folder: str) -> None:
    """Write the base."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=WORDS, n_positions=64, n_embd=768, n_layer=6, n_head=12, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)


def memory() -> dict[str, int]:
    """This process's memory in kB: its share of all pages, and of those of the base's file."""
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    whole = {name: int(value.split()[0]) for name, value in (line.split(":") for line in rollup)}
    shares = {"pss": whole["Pss"], "base_pss": 0, "base_own": 0}
    is_base = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head, *rest = line.split()
        if not head.endswith(":"):
            is_base = line.endswith("model.safetensors")
        elif is_base and head in ("Pss:", "Anonymous:"):
            shares["base_pss" if head == "Pss:" else "base_own"] += int(rest[0])
    return shares


class Meeting(TrainerCallback):  # type: ignore[misc]
    """Measures where all jobs are at the same step."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self._folder, self._jobs = folder, jobs

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == MEASURED and not list(self._folder.glob(f"{os.getpid()}.*")):
            self._meet("here", {})
            self._meet("measured", memory())

    def _meet(self, word: str, content: dict[str, int]) -> None:
        (self._folder / f"{os.getpid()}.{word}").write_text(json.dumps(content))
        deadline = time.monotonic() + PATIENCE
        while len(list(self._folder.glob(f"*.{word}"))) < self._jobs:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all jobs are {word}")
            time.sleep(0.05)


def tune(folder: str, meeting: str, jobs: int) -> None:
    """Train the adapters."""
    torch.set_num_threads(1)
    base = GPT2LMHeadModel.from_pretrained(folder)
    if os.environ.get("COPY"):
        for parameter in base.parameters():
            parameter.data = parameter.data.clone()
    torch.manual_seed(0)
    layers = ["c_attn", "c_proj", "c_fc"]
    lora = LoraConfig(r=8, target_modules=layers, fan_in_fan_out=True, task_type="CAUSAL_LM")
    model = get_peft_model(base, lora)
    chance = torch.Generator().manual_seed(0)
    words = torch.randint(WORDS, (STEPS * BATCH, LENGTH), generator=chance)
    arguments = TrainingArguments(
        output_dir=str(Path(meeting, "out")),
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        learning_rate=1e-3,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = brim.transformers.Trainer(
        model,
        arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in words],
        callbacks=[Meeting(Path(meeting), jobs)],
    )
    trainer.train()


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2])
    else:
        tune(sys.argv[2], sys.argv[3], int(sys.argv[4]))
