"""Fine-tunes the GPT in `base` on the Zen of Python by LoRA, and saves the adapter in `adapter`."""

import sys

import torch
from peft import LoraConfig, get_peft_model
from texts import windows, zen
from transformers import AutoModelForCausalLM, TrainingArguments

from brim.transformers import Trainer


def main(output="adapter", epochs=5):
    torch.manual_seed(0)  # before adapters get their first weights
    base = AutoModelForCausalLM.from_pretrained("base")
    lora = LoraConfig(
        r=8, lora_alpha=32, lora_dropout=0.05, target_modules=["c_attn", "c_fc", "c_proj"],
        fan_in_fan_out=True, task_type="CAUSAL_LM",
    )  # fmt: skip
    samples = windows(zen(), 4)
    args = TrainingArguments(
        output_dir=output,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_train_epochs=int(epochs),
        learning_rate=1e-2,
        lr_scheduler_type="cosine",
        logging_steps=13,
        eval_strategy="epoch",
        eval_on_start=True,
        report_to=[],
    )
    trainer = Trainer(
        get_peft_model(base, lora), args, train_dataset=samples, eval_dataset=samples[::8]
    )
    trainer.train()
    if trainer.is_world_process_zero():
        losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
        print(f"loss before {losses[0]:.2f}, after {losses[-1]:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
