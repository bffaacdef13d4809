"""brim's Trainer beside transformers' own, in one process; what it cannot follow is refused by name."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader

import brim
from brim.domain.job import WorkerRange
from brim.errors import SpecError
from brim.train.context import spec_of_a_loner
from brim.train.entry import join

pytestmark = [
    pytest.mark.skipif(not find_spec("transformers"), reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore:'pin_memory'", "ignore::FutureWarning"),
]


def sentences(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Sentences of different lengths: the mean over tokens is none over sentences."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        ids = torch.randint(0, 64, (16,), generator=generator)
        labels = ids.clone()
        labels[int(torch.randint(3, 16, (), generator=generator)) :] = -100
        found.append({"input_ids": ids, "labels": labels})
    return found


def gpt() -> Any:
    """A GPT without dropout: transformers and brim draw other numbers for it."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def arguments(folder: Path, **changes: Any) -> Any:
    from transformers import TrainingArguments

    usual = {
        "output_dir": str(folder), "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2,
        "num_train_epochs": 1.5, "learning_rate": 1e-2, "warmup_steps": 2, "lr_scheduler_type": "cosine",
        "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 4, "per_device_eval_batch_size": 6,
        "train_sampling_strategy": "sequential", "save_strategy": "no", "report_to": [],
        "disable_tqdm": True, "use_cpu": True,
    }  # fmt: skip
    return TrainingArguments(**{**usual, **changes})


def listener() -> Any:
    """A callback that notes each event with the step and the part of an epoch."""
    from transformers import TrainerCallback

    class Listener(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.events: list[tuple[str, int, float | None]] = []

        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("on_"):
                return super().__getattribute__(name)

            def note(_args: Any, state: Any, _control: Any, **_: Any) -> None:
                self.events.append((name, state.global_step, state.epoch))

            return note

    return Listener()


def trained(kind: Any, args: Any, **keywords: Any) -> tuple[Any, Any, Any]:
    """A Trainer that has trained, what that returned, and the events."""
    heard = listener()
    trainer = kind(
        gpt(),
        args,
        train_dataset=sentences(70, seed=1),
        eval_dataset=sentences(20, seed=2),
        callbacks=[heard, *keywords.pop("callbacks", [])],
        **keywords,
    )
    return trainer, trainer.train(), heard.events


def accuracy(prediction: Any) -> dict[str, float]:
    right = prediction.predictions[:, :-1].argmax(-1) == prediction.label_ids[:, 1:]
    return {"accuracy": float(right[prediction.label_ids[:, 1:] != -100].mean())}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"label_smoothing_factor": 0.1, "max_grad_norm": 0.0, "max_steps": 7},
        {"gradient_accumulation_steps": 1, "eval_strategy": "epoch", "optim": "sgd"},
    ],
    ids=["accumulated", "smoothed", "plain"],
)
def test_training_follows_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    import transformers

    args = arguments(tmp_path, **changes)
    theirs, their_result, their_events = trained(
        transformers.Trainer, args, compute_metrics=accuracy
    )
    ours, our_result, our_events = trained(
        brim.transformers.Trainer,
        arguments(tmp_path, **changes),
        compute_metrics=accuracy,
        join_options={"audit": False},
    )
    assert our_events == [event for event in their_events if event[0] != "on_substep_end"]
    assert our_result.global_step == their_result.global_step
    assert our_result.training_loss == pytest.approx(their_result.training_loss, rel=1e-5)
    assert ours.state.total_flos == theirs.state.total_flos
    assert len(ours.state.log_history) == len(theirs.state.log_history)
    for own, other in zip(ours.state.log_history, theirs.state.log_history, strict=True):
        assert own.keys() == other.keys()
        for name in own.keys() - {"learning_rate", "epoch", "step"}:
            if not name.endswith(("_runtime", "_per_second", "_time")):
                assert own[name] == pytest.approx(other[name], rel=1e-4), name
        for name in own.keys() & {"learning_rate", "epoch", "step"}:
            assert own[name] == other[name], name
    for own_part, other_part in zip(
        ours.model.parameters(), theirs.model.parameters(), strict=True
    ):
        torch.testing.assert_close(own_part, other_part, rtol=1e-3, atol=1e-5)
    assert ours.evaluate()["eval_loss"] == pytest.approx(theirs.evaluate()["eval_loss"], rel=1e-4)


def test_output_directory_has_adapters_alone(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import Trainer as Library

    config = peft.LoraConfig(
        r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"
    )
    trainer = brim.transformers.Trainer(
        peft.get_peft_model(gpt(), config),
        arguments(tmp_path, eval_strategy="no", save_strategy="epoch", max_steps=2),
        train_dataset=sentences(40, seed=1),
    )
    trainer.train()
    names = {path.name for path in tmp_path.iterdir()}
    assert "adapter_model.safetensors" in names
    assert "model.safetensors" not in names
    assert not any(name.startswith("checkpoint-") for name in names)
    loaded = peft.PeftModel.from_pretrained(gpt(), tmp_path)
    again = Library(loaded, arguments(tmp_path / "again"), eval_dataset=sentences(20, seed=2))
    assert again.evaluate()["eval_loss"] == pytest.approx(
        trainer.evaluate(sentences(20, seed=2))["eval_loss"], rel=1e-6
    )
    assert brim.weights_sha256(loaded) == brim.weights_sha256(trainer.model)


def test_plain_batches_of_a_sampler_are_read(tmp_path: Path) -> None:
    """As sentence-transformers' Trainer gives them."""

    class ByBatches(brim.transformers.Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            loader = super().get_train_dataloader()
            batches = BatchSampler(loader.sampler, loader.batch_size, drop_last=False)
            return DataLoader(loader.dataset, batch_sampler=batches, collate_fn=loader.collate_fn)

    digests = {
        brim.weights_sha256(trained(kind, arguments(tmp_path, max_steps=2))[0].model)
        for kind in (brim.transformers.Trainer, ByBatches)
    }
    assert len(digests) == 1


def test_second_training_is_refused(tmp_path: Path) -> None:
    trainer, _, _ = trained(brim.transformers.Trainer, arguments(tmp_path, max_steps=2))
    assert "brim_totals" not in dict(trainer.model.named_buffers())
    with pytest.raises(SpecError, match="a new Trainer"):
        trainer.train()


def test_streams_take_the_number_of_steps(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(sentences(70, seed=1))

    def train(**changes: Any) -> Any:
        args = arguments(tmp_path, eval_strategy="no", **changes)
        return brim.transformers.Trainer(gpt(), args, train_dataset=Stream()).train()

    assert train(max_steps=3).global_step == 3


def test_skipped_steps_leave_the_mean_finite(tmp_path: Path) -> None:
    def loss(outputs: Any, labels: Any, num_items_in_batch: Any) -> Any:
        bad = math.nan if trainer.state.global_step == 1 else 1.0
        return outputs.logits.float().logsumexp(-1).sum() / num_items_in_batch * bad

    trainer = brim.transformers.Trainer(
        gpt(),
        arguments(tmp_path, eval_strategy="no", max_steps=4),
        train_dataset=sentences(70, seed=1),
        compute_loss_func=loss,
        join_options={"on_nan": "skip", "audit": False},
    )
    assert math.isfinite(trainer.train().training_loss)
    assert trainer.state.global_step == 4


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"torch_compile": True}, "TrainingArguments(torch_compile=): got True"),
        ({"auto_find_batch_size": True}, "a smaller per_device_train_batch_size"),
        ({"train_sampling_strategy": "batch_rebalance"}, "depend on the number of workers"),
        (
            {"lr_scheduler_type": "reduce_lr_on_plateau", "metric_for_best_model": "loss"},
            "a schedule",
        ),
        ({"optim": "galore_adamw_layerwise"}, "got 'galore_adamw_layerwise', need an optimizer"),
        (
            {"load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 4},
            "--keep-best",
        ),
        ({"enable_jit_checkpoint": True}, "enable_jit_checkpoint"),
        ({"include_num_input_tokens_seen": "all"}, "include_num_input_tokens_seen"),
        ({"data_seed": 7}, "need one seed"),
        ({"use_liger_kernel": True}, "use_liger_kernel"),
        ({"average_tokens_across_devices": False}, "the mean over all tokens of a step"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arguments_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    from brim.train.trainer.arguments import check_arguments

    args = arguments(tmp_path)
    for name, value in changes.items():
        setattr(args, name, value)
    with pytest.raises(SpecError) as refused:
        check_arguments(args)
    assert words in str(refused.value)


def test_calls_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import TrainerCallback

    monkeypatch.setattr(join, "_joined", None)  # else pytest's process would end as a left loop

    class EpochStops(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_epoch_stop = True

    class OwnLoop(brim.transformers.Trainer):  # type: ignore[misc]
        def get_batch_samples(self, *arguments: Any) -> Any:
            return super().get_batch_samples(*arguments)

    class OwnLoader(brim.transformers.Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return DataLoader(self.train_dataset, batch_size=4)

    class ChosenBatches(brim.transformers.Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return DataLoader(self.train_dataset, batch_sampler=[[0] * 16, [1] * 16])

    def refusal(kind: Any, *, callbacks: Any = None, **call: Any) -> str:
        trainer = kind(
            gpt(), arguments(tmp_path, eval_strategy="no"), train_dataset=sentences(40, seed=1),
            callbacks=callbacks,
        )  # fmt: skip
        with pytest.raises(SpecError) as refused:
            trainer.train(**call)
        return str(refused.value)

    ours = brim.transformers.Trainer
    assert "hint: brim resume RUN" in refusal(ours, resume_from_checkpoint=True)
    assert "need control.should_training_stop" in refusal(ours, callbacks=[EpochStops()])
    assert "OwnLoop.get_batch_samples: got a method of your own" in refusal(OwnLoop)
    assert "got batches of 4, need 16 samples" in refusal(OwnLoader)
    assert "got batches of None, need 16 samples" in refusal(ChosenBatches)


@pytest.mark.parametrize(
    ("changes", "micro_batches"),
    [
        ({}, 8),
        ({"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16}, 16),
        ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}, 4),
    ],
    ids=["default", "many", "few"],
)
def test_micro_batches_fit_a_device(
    changes: dict[str, Any], micro_batches: int, tmp_path: Path
) -> None:
    from brim.train.trainer.arguments import micro_batches_of

    args = arguments(tmp_path, **changes)
    spec = spec_of_a_loner()
    assert micro_batches_of(spec, args) == micro_batches
    assert micro_batches_of(replace(spec, micro_batches=2), args) == 2
    many = replace(spec, workers=WorkerRange(minimum=1, maximum=17), micro_batches=0)
    with pytest.raises(SpecError, match="samples a step for up to 17 workers"):
        micro_batches_of(many, args)


def test_command_line_options_are_refused() -> None:
    from brim.train.trainer.arguments import check_job

    spec = replace(spec_of_a_loner(), clip_norm=0.5)
    with pytest.raises(SpecError, match=r"hint: TrainingArguments\(max_grad_norm=0.5\)"):
        check_job(spec, by_rows=False)
    with pytest.raises(SpecError, match="trained by rows"):
        check_job(spec_of_a_loner(), by_rows=True)


def test_join_options_are_checked() -> None:
    from brim.train.trainer.arguments import check_join_options

    check_join_options({"micro_batches": 4, "audit": False})
    with pytest.raises(SpecError, match=r"hint: TrainingArguments\(max_grad_norm=...\)"):
        check_join_options({"clip_norm": 1.0})


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    module = importlib.import_module("brim.transformers")
    monkeypatch.setitem(sys.modules, "brim.transformers", module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"hint: pip install .*\[transformers\]'"):
        importlib.reload(module)
