"""A small GPT by transformers' Trainer: LoRA, or all weights, with arguments that people set."""

import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    TrainerCallback,
    TrainingArguments,
)

from brim.transformers import Trainer

LORA = LoraConfig(
    r=4, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"
)


class OneStops(TrainerCallback):
    """Asks to stop on the first worker alone."""

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 7 and state.is_world_process_zero:
            control.should_training_stop = True


class OwnStep(Trainer):
    """A Trainer with a training step of its own, that forgets brim."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = self.compute_loss(model, inputs)
        loss.backward()
        return loss.detach()


def sentences(count, seed):
    """Sentences of different lengths, padded; what is padded is no label."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        ids = torch.randint(0, 64, (16,), generator=generator)
        labels = ids.clone()
        labels[int(torch.randint(5, 16, (), generator=generator)) :] = -100
        found.append({"input_ids": ids, "labels": labels})
    return found


def accuracy(prediction):
    """The share of tokens that are right, computed from all predictions."""
    right = prediction.predictions[:, :-1].argmax(-1) == prediction.label_ids[:, 1:]
    return {"accuracy": right[prediction.label_ids[:, 1:] != -100].mean().item()}


def arguments(**changes):
    """The arguments of a fine-tuning of 2 epochs of 5 steps."""
    usual = {
        "output_dir": "out", "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2,
        "num_train_epochs": 2, "learning_rate": 1e-2, "warmup_steps": 2, "lr_scheduler_type": "cosine",
        "logging_steps": 2, "eval_strategy": "steps", "eval_steps": 4, "save_strategy": "no", "report_to": [],
        "disable_tqdm": True, "use_cpu": True,
    }  # fmt: skip
    return TrainingArguments(**{**usual, **changes})


CHANGES = {
    "accumulated": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16},
    "bf16": {"bf16": True},
    "by_length": {"train_sampling_strategy": "group_by_length", "dataloader_drop_last": True},
    "early": {"metric_for_best_model": "loss", "eval_steps": 2, "num_train_epochs": 4},
    "metrics": {"eval_strategy": "epoch", "per_device_eval_batch_size": 3, "eval_on_start": True},
    "neftune": {"neftune_noise_alpha": 5.0, "label_smoothing_factor": 0.1},
    "one_stops": {},
    "recomputed": {"activation_checkpointing": True},
    "short": {"max_steps": 7, "max_grad_norm": 0.0, "optim": "adafactor"},
    "compiled": {"torch_compile": True},
}
CALLBACKS = {"early": [EarlyStoppingCallback(1)], "one_stops": [OneStops()]}


def main(kind):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    trainer = (OwnStep if kind == "own_step" else Trainer)(
        model if kind == "full" else get_peft_model(model, LORA),
        arguments(**CHANGES.get(kind, {})),
        train_dataset=sentences(70, seed=1),
        eval_dataset=sentences(20, seed=2),
        compute_metrics=accuracy if kind == "metrics" else None,
        callbacks=CALLBACKS.get(kind),
    )
    print(trainer.train())


if __name__ == "__main__":
    main(sys.argv[1])
