"""Keras models train by `brim.keras.fit` and `brim.join` as by `model.fit`; what cannot is refused."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import brim
from brim.errors import SpecError

pytestmark = [
    pytest.mark.skipif(not find_spec("keras"), reason="Keras is not installed"),
    # Of Keras' variables, under numpy 2.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(50, 6)).astype("float32")
LATE = (ROWS[:, 0] > 0).astype("float32")
HOURS = RNG.integers(0, 3, (50, 1))
WEIGHTS = RNG.uniform(0.5, 2, 50).astype("float32")


@pytest.fixture(scope="module")
def keras() -> Any:
    brim.keras.fit  # chooses the backend of the Keras that is imported next
    import keras

    return keras


def network(keras: ModuleType, *layers: Any, loss: Any = "mse", **compiled: Any) -> Any:
    """A compiled model of rows [6]."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer=compiled.pop("optimizer", "adam"), loss=loss, **compiled)
    return model


def fit(model: Any, data: Any = (ROWS, LATE), **options: Any) -> Any:
    return brim.keras.fit(model, data, global_batch_size=16, **options)


def weights_of(model: Any) -> list[Any]:
    """What is trained, and its optimizer's state."""
    variables = (*model.trainable_variables, *model.optimizer.variables)
    return [variable.numpy() for variable in variables]


# As Keras does it ---------------------------------------------------------------------------------


def of_two(keras: ModuleType) -> Any:
    """Two outputs, a shared layer, regularizers, a constraint, a schedule, averages, clipping."""
    keras.utils.set_random_seed(1)
    layers, rows = keras.layers, keras.Input((6,))
    shared = layers.Dense(6, kernel_regularizer="l2", activity_regularizer="l1")
    known = layers.BatchNormalization()(shared(shared(rows)))
    late = layers.Dense(1, name="late", kernel_constraint="max_norm")(known)
    hour = layers.Dense(3, activation="softmax", name="hour")(known)
    model = keras.Model(rows, {"late": late, "hour": hour})
    rate = keras.optimizers.schedules.ExponentialDecay(1e-2, 5, 0.9)
    model.compile(
        optimizer=keras.optimizers.AdamW(rate, use_ema=True, global_clipnorm=1.0),
        loss={"late": "mse", "hour": "sparse_categorical_crossentropy"},
        loss_weights={"late": 1.0, "hour": 0.5},
        metrics={"hour": ["accuracy"]},
        weighted_metrics={"late": ["mae", keras.metrics.AUC(name="auc")]},
    )
    return model


def test_one_micro_batch_trains_as_model_fit(keras: ModuleType) -> None:
    targets = {"late": LATE[:, None], "hour": HOURS}
    torch.set_num_threads(1)  # as brim does
    theirs, ours = of_two(keras), of_two(keras)
    history = theirs.fit(
        ROWS, targets, 16, epochs=3, verbose=0, sample_weight=WEIGHTS, shuffle=False,
        validation_data=(ROWS, targets),
    ).history  # fmt: skip
    data, options = (ROWS, targets, WEIGHTS), {"micro_batches": 1, "shuffle": False}
    found = fit(ours, data, epochs=3, validation_data=(ROWS, targets), **options).history
    assert found.keys() == history.keys()
    for name, values in history.items():
        assert found[name] == pytest.approx(values, rel=1e-5), name
    for one, other in zip(weights_of(ours), weights_of(theirs), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)  # moving averages: the sum of changes


def test_metrics_do_not_depend_on_micro_batches(keras: ModuleType) -> None:
    """With a rate of zero, weights stay: sums of eight parts are the sum of one."""
    histories = []
    for micro_batches in (1, 8):
        keras.utils.set_random_seed(2)
        model = network(
            keras,
            keras.layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l1"),
            optimizer=keras.optimizers.SGD(0.0),
            metrics=["mae", keras.metrics.AUC(name="auc")],
        )
        history = fit(model, (ROWS, LATE, WEIGHTS), epochs=1, micro_batches=micro_batches)
        histories.append(history.history)
    one, eight = histories
    assert {name: pytest.approx(values, rel=1e-5) for name, values in one.items()} == eight


def test_callbacks_stop_and_restore_as_in_keras(keras: ModuleType) -> None:
    def callbacks() -> list[Any]:
        return [
            keras.callbacks.EarlyStopping("loss", min_delta=10, restore_best_weights=True),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
        ]

    theirs, ours = network(keras), network(keras)
    history = theirs.fit(
        ROWS, LATE, 16, epochs=5, verbose=0, shuffle=False, callbacks=callbacks()
    ).history
    found = fit(ours, epochs=5, micro_batches=1, shuffle=False, callbacks=callbacks()).history
    assert found == {name: pytest.approx(values, rel=1e-5) for name, values in history.items()}
    assert len(found["loss"]) == 2
    np.testing.assert_array_equal(ours.get_weights()[0], theirs.get_weights()[0])


def test_keras_files_have_model_and_optimizer(keras: ModuleType, tmp_path: Path) -> None:
    model = network(keras, keras.layers.BatchNormalization(), keras.layers.Dropout(0.2))
    fit(model, epochs=1)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for one, other in zip(weights_of(loaded), weights_of(model), strict=True):
        np.testing.assert_array_equal(one, other)
    fit(loaded, epochs=1)  # goes on from there


def test_torch_datasets_train_unbuilt_models(keras: ModuleType) -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    samples = torch.utils.data.TensorDataset(torch.tensor(ROWS), torch.tensor(LATE))
    loader = torch.utils.data.DataLoader(samples, batch_size=16, shuffle=True)
    history = brim.keras.fit(model, loader, epochs=2, validation_data=loader).history
    assert history["loss"][1] < history["loss"][0]
    assert len(history["val_loss"]) == 2


@pytest.mark.parametrize("outer_first", [True, False])
def test_models_that_share_layers_share_state(keras: ModuleType, outer_first: bool) -> None:
    inner = network(keras, keras.layers.BatchNormalization(momentum=0.0))
    outer = keras.Sequential([keras.Input((6,)), keras.layers.Rescaling(1.0), inner])
    models = [outer, inner] if outer_first else [inner, outer]
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    job = brim.join(models, optimizer, micro_batches=1)
    samples = torch.utils.data.TensorDataset(torch.tensor(ROWS), torch.tensor(LATE))
    for batch in job.batches(samples, global_batch_size=50, shuffle=False):
        output = outer(batch.inputs, training=True)[:, 0]
        job.step((output - batch.target).square().mean())
    found = inner.layers[0].moving_mean.numpy()
    np.testing.assert_allclose(found, ROWS.mean(0), rtol=1e-4, atol=1e-5)


def test_a_layer_draws_by_its_seed(keras: ModuleType) -> None:
    outputs = []
    for seed in (1, 2):
        model = network(keras, keras.layers.Dropout(0.5, seed=seed))
        brim.train.keras.network.adopt(model)
        torch.manual_seed(0)
        outputs.append(model.layers[0](torch.ones(1, 64), training=True))
    assert not torch.equal(*outputs)


def test_loops_set_learning_rates_of_keras(keras: ModuleType) -> None:
    model = network(keras)
    optimizer = keras.optimizers.SGD(0.5)
    job = brim.join(model, optimizer)
    (of_torch,) = job.parts.optimization.optimizers
    of_torch.param_groups[0]["lr"] = 0.0
    before = model.get_weights()[0]
    samples = torch.utils.data.TensorDataset(torch.tensor(ROWS), torch.tensor(LATE))
    for batch in job.batches(samples, global_batch_size=50):
        job.step((model(batch.inputs)[:, 0] - batch.target).square().mean())
    assert float(optimizer.learning_rate) == 0.0
    np.testing.assert_array_equal(model.get_weights()[0], before)


# Refusals -----------------------------------------------------------------------------------------


def refusal(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(SpecError) as caught:
        call(*arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 32}, "global_batch_size="),
        ({"class_weight": {0: 1.0}}, "(x, y, weights)"),
        ({"validation_split": 0.1}, "validation_data="),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_arguments_of_model_fit_are_named(keras: ModuleType, options: Any, words: str) -> None:
    assert words in refusal(brim.keras.fit, network(keras), (ROWS, LATE), **options)


@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight"])
def test_losses_without_a_mean_are_refused(keras: ModuleType, reduction: str) -> None:
    model = network(keras, loss=keras.losses.MeanSquaredError(reduction=reduction))
    assert f"reduction={reduction!r}" in refusal(fit, model)


def test_models_that_train_otherwise_are_refused(keras: ModuleType) -> None:
    class Own(keras.Sequential):  # type: ignore[misc, name-defined]
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    plain = keras.Sequential([keras.layers.Dense(1)])
    assert "not compiled" in refusal(fit, plain)
    assert "a Linear" in refusal(fit, torch.nn.Linear(1, 1))
    own = Own([keras.layers.Dense(1)])
    own.compile("adam", "mse")
    assert "Own.train_step" in refusal(fit, own)
    assert "jit_compile=True" in refusal(fit, network(keras, jit_compile=True))
    assert "steps_per_execution=2" in refusal(fit, network(keras, steps_per_execution=2))


def test_scaled_losses_are_refused(keras: ModuleType) -> None:
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    assert "mixed_bfloat16" in refusal(fit, network(keras, optimizer=scaled))
    scaled = keras.optimizers.SGD(0.1, loss_scale_factor=8.0)
    assert "mixed_bfloat16" in refusal(fit, network(keras, optimizer=scaled))


def test_metrics_that_do_not_add_up_are_refused(keras: ModuleType) -> None:
    class Largest(keras.metrics.Metric):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(name="largest")
            self.value = self.add_weight(shape=(), initializer="zeros", name="value")

        def update_state(self, _: Any, output: Any, sample_weight: Any = None) -> None:
            self.value.assign(keras.ops.maximum(self.value, keras.ops.max(keras.ops.abs(output))))

        def result(self) -> Any:
            return self.value

    assert "metric 'largest'" in refusal(fit, network(keras, metrics=["mae", Largest()]))


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("ModelCheckpoint", ("x.keras",), "model.save()"),
        ("CSVLogger", ("x.csv",), "history"),
        ("TensorBoard", (), "--logger tensorboard"),
        ("TerminateOnNaN", (), 'on_nan="stop"'),
        ("BackupAndRestore", ("x",), "brim resume"),
    ],
)
def test_callbacks_with_a_counterpart_are_refused(
    keras: ModuleType, name: str, arguments: Any, words: str
) -> None:
    callback = getattr(keras.callbacks, name)(*arguments)
    assert words in refusal(fit, network(keras), callbacks=[callback])


def test_callbacks_of_batches_are_refused(keras: ModuleType) -> None:
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)
    assert "on_train_batch_end()" in refusal(fit, network(keras), callbacks=[callback])
    assert "need a list" in refusal(fit, network(keras), callbacks=callback)


def test_data_of_wrong_parts_is_refused(keras: ModuleType) -> None:
    assert "arrays of 49 and 50 samples" in refusal(fit, network(keras), (ROWS, LATE[1:]))
    assert "4 parts" in refusal(fit, network(keras), (ROWS, LATE, WEIGHTS, LATE))
    assert "got no data" in refusal(fit, network(keras), None)
    words = np.array(["late"] * len(ROWS))
    assert "got an array of <U4, need arrays of numbers" in refusal(
        fit, network(keras), (ROWS, words)
    )


def test_fit_goes_on_behind_model_fit(keras: ModuleType) -> None:
    model = network(keras)
    model.fit(ROWS, LATE, epochs=1, verbose=0)
    assert len(fit(model, (ROWS, LATE)).history["loss"]) > 0


def test_batches_are_refused_where_samples_are_needed(keras: ModuleType) -> None:
    class Batches(keras.utils.PyDataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return np.zeros((8, 4), np.float32), np.zeros((8, 1), np.float32)

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    for data, words in ((Batches(), "batches of a Batches"), (np.zeros((8, 4)), "one ndarray")):
        with pytest.raises(SpecError, match=words):
            brim.keras.fit(model, data, global_batch_size=8, epochs=1)


def test_unbuilt_and_stateful_models_are_refused(keras: ModuleType) -> None:
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    assert "without weights yet" in refusal(brim.join, unbuilt, keras.optimizers.SGD(0.1))
    stateful = keras.Sequential(
        [keras.Input((4, 3), batch_size=2), keras.layers.LSTM(2, stateful=True)]
    )
    assert "stateful=True" in refusal(brim.join, stateful, keras.optimizers.SGD(0.1))


def test_a_keras_optimizer_serves_one_keras_model(keras: ModuleType) -> None:
    optimizer = keras.optimizers.SGD(0.1)
    assert "no Keras model" in refusal(brim.join, torch.nn.Linear(1, 1), optimizer)
    models = [network(keras), network(keras)]
    assert "several models" in refusal(brim.join, models, optimizer)
    brim.keras.fit(models[0], (ROWS, LATE), global_batch_size=16)
    models[1].optimizer = models[0].optimizer
    assert "built for other variables" in refusal(brim.join, models[1], models[1].optimizer)


def test_a_missing_keras_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brim.keras, "find_spec", lambda _: None)
    assert "[train,keras]'" in refusal(fit, None)


def test_another_backend_is_named(keras: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network(keras)
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    for message in (refusal(fit, model), refusal(brim.join, model, model.optimizer)):
        assert "the backend 'jax'" in message
        assert "import brim.keras above import keras" in message
