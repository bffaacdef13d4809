"""The Zen of Python by LoRA with TRL's SFTTrainer as it is, in as many processes as there are.

Nothing of it is brim's: at the restart level it goes on from its own checkpoints. `base.py` comes first.
"""

import os
import sys

import torch
from datasets import Dataset
from peft import LoraConfig
from texts import LENGTH, LETTERS, windows, zen
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

FOLDER = os.environ.get("BRIM_CHECKPOINTS", "sft")
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
MOST = int(os.environ.get("BRIM_WORLD_MAX", WORLD))


def tokenizer():
    """One token a character, with the numbers of texts.py."""
    letters = {"<>": 0} | {letter: number for number, letter in enumerate(LETTERS, start=1)}
    characters = Tokenizer(WordLevel(letters, unk_token="<>"))
    characters.pre_tokenizer = Split(Regex("."), "isolated")
    special = dict.fromkeys(("unk_token", "pad_token", "eos_token", "bos_token"), "<>")
    return PreTrainedTokenizerFast(tokenizer_object=characters, **special)


def main(output="sft-adapter", epochs=3):
    torch.manual_seed(0)  # before adapters get their first weights
    args = SFTConfig(
        FOLDER,
        max_length=LENGTH,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=MOST // WORLD,  # so the global batch is 8 * MOST
        num_train_epochs=int(epochs),
        learning_rate=1e-2,
        logging_steps=5,
        save_steps=25,
        enable_jit_checkpoint=True,  # saves at SIGTERM
        use_cpu=True,
        ddp_backend="gloo" if "RANK" in os.environ else None,
        disable_tqdm=True,
        report_to=[],
    )
    lora = LoraConfig(
        r=8, lora_alpha=32, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True,
        task_type="CAUSAL_LM",
    )  # fmt: skip
    samples = [{"input_ids": window["input_ids"].tolist()} for window in windows(zen(), 4)]
    trainer = SFTTrainer(
        "base",
        args,
        train_dataset=Dataset.from_list(samples),
        processing_class=tokenizer(),
        peft_config=lora,
    )
    os.makedirs(FOLDER, exist_ok=True)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(FOLDER))
    trainer.save_model(output)
    print("done at step", trainer.state.global_step, "of", trainer.state.max_steps, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
