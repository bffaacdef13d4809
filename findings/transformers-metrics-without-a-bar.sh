#!/usr/bin/env bash
# transformers 5.24.0: with disable_tqdm=True, the metrics that Trainer.train() returns have no total_flos.
#
# With disable_tqdm a Trainer has PrinterCallback in place of ProgressCallback. Its on_log takes total_flos out of the dict of
# logs that it is given, which is the dict of metrics that train() returns afterwards, and that callbacks behind it see. So
# trainer.train().metrics["total_flos"] is a KeyError with disable_tqdm=True, and a number without; state.log_history, which
# has a copy, has it in both cases. ProgressCallback makes a copy before it changes the logs. Seen on 2026-11-29 with Python
# 3.11, also in 5.23.0. Nothing of torch is needed: the callback is called as a Trainer calls it.
#
# Needs: python3.11 with venv. Fails if transformers behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.24.0
"$folder/venv/bin/python" - <<'PY' 2>/dev/null
import transformers
from transformers import PrinterCallback, ProgressCallback, TrainerControl, TrainerState


def metrics_after(callback):
    state, metrics = TrainerState(max_steps=1), {"train_loss": 1.0, "total_flos": 6.0}
    callback.on_train_begin(None, state, TrainerControl())
    callback.on_log(None, state, TrainerControl(), logs=metrics)
    return metrics


bar, printer = metrics_after(ProgressCallback()), metrics_after(PrinterCallback())
print(transformers.__version__, "with a bar:", bar, "without:", printer)
assert transformers.__version__ == "5.24.0"
assert bar == {"train_loss": 1.0, "total_flos": 6.0}
assert printer == {"train_loss": 1.0}
PY
