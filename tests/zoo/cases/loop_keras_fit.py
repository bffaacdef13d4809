"""Keras' `compile`, and `brim.keras.fit` in place of `model.fit`: two inputs, two outputs."""

import sys

import brim.keras  # chooses Keras' torch backend  # isort: skip
import keras
import numpy as np

KIND = sys.argv[1]
ROWS, EPOCHS = (120, 2) if KIND == "small" else (240, 3)
L = keras.layers
keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
words, rows = rng.integers(0, 12, (ROWS, 9)), rng.normal(size=(ROWS, 6)).astype("float32")
late = (rows[:, :1] * rows[:, 1:2] > 0).astype("float32")
weights = rng.uniform(0.5, 2, ROWS).astype("float32")

text, table = L.Input((9,), dtype="int32", name="text"), L.Input((6,), name="table")
read = L.LSTM(6, dropout=0.1)(L.Embedding(12, 4)(text))
known = L.Dense(8, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-3))(table)
both = L.Dropout(0.2)(L.BatchNormalization()(L.Concatenate()([read, known])))
hour = L.Dense(12, activation="softmax", name="hour")(both)
is_late = L.Dense(1, name="late", kernel_constraint="max_norm")(both)
model = keras.Model({"text": text, "table": table}, {"hour": hour, "late": is_late})

schedule = keras.optimizers.schedules.CosineDecay(1e-2, 30)
optimizer = keras.optimizers.AdamW(
    schedule if KIND == "schedule" else 1e-2, use_ema=True, global_clipnorm=1.0
)
model.compile(
    optimizer=optimizer,
    loss={
        "hour": "sparse_categorical_crossentropy",
        "late": keras.losses.BinaryCrossentropy(from_logits=True),
    },
    metrics={"hour": ["accuracy"], "late": [keras.metrics.AUC(from_logits=True)]},
    weighted_metrics={"late": ["mse"]},
)
callbacks = [
    keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True),
    keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=10.0),
]
data = ({"text": words, "table": rows}, {"hour": words[:, :1], "late": late}, weights)
history = brim.keras.fit(
    model,
    data,
    epochs=EPOCHS,
    global_batch_size=24,
    validation_data=data,
    callbacks=callbacks if KIND != "schedule" else None,
)
print("history", history.history)
