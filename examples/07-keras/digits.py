"""Handwritten digits by Keras: `compile` as usual, and `brim.keras.fit` in place of `model.fit`.

python digits.py [EPOCHS]
brim run --workers 1:4 -- python digits.py
"""

import sys

import brim.keras  # chooses Keras' torch backend  # isort: skip
import keras
from sklearn.datasets import load_digits

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 8
keras.utils.set_random_seed(1)
images, labels = load_digits(return_X_y=True)
images = (images / 16).reshape(-1, 8, 8, 1).astype("float32")

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.RandomTranslation(0.1, 0.1),
        keras.layers.Conv2D(16, 3, padding="same", kernel_regularizer="l2"),
        keras.layers.BatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=keras.optimizers.AdamW(1e-2, use_ema=True),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = brim.keras.fit(
    model,
    (images[:1500], labels[:1500]),
    validation_data=(images[1500:], labels[1500:]),
    epochs=epochs,
    global_batch_size=128,
    callbacks=[keras.callbacks.EarlyStopping("val_accuracy", patience=max(2, epochs // 4))],
)
if history.job.rank == 0:
    model.save("digits.keras")
    accuracies = ", ".join(f"{value:.4f}" for value in history.history["val_accuracy"])
    print(f"accuracy after each epoch: {accuracies}")
