#!/usr/bin/env bash
# lightning 2.6.6: a fit that SIGTERM has stopped ends its process with exit status 0.
#
# Trainer.fit takes SIGTERM and raises SIGTERMException at the next batch. That is a SystemExit without a status, so a script
# that leaves it alone ends with 0, as a fit that is done does, with a few of its steps made and no checkpoint written. A
# launcher or a scheduler that looks at the exit status takes a job that was stopped from outside for one that is done. What
# helps: catch SIGTERMException around fit and exit with 143, or set a handler in on_train_start, which saves and stops.
# Without Lightning SIGTERM ends the same process with 143 in a shell, -15 for Python's subprocess.
# Seen on 2026-11-30 with Python 3.11 and torch 2.13.0, on CPUs, with one process.
#
# Needs: python3.11 with venv; torch is some GB. Fails if lightning behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
if command -v uv >/dev/null; then
  uv pip install --quiet --python "$folder/venv/bin/python" lightning==2.6.6 torch==2.13.0 numpy==2.4.6
else
  "$folder/venv/bin/pip" install --quiet lightning==2.6.6 torch==2.13.0 numpy==2.4.6
fi
cat >"$folder/fit.py" <<'PY'
import os
import signal
import sys

import lightning as L
import torch
from torch.utils.data import DataLoader


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, place):
        if place == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.layer(batch).sum()

    def on_train_batch_end(self, outputs, batch, place):
        print("batch", place, flush=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = L.Trainer(
    max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Module(), DataLoader(torch.ones(100, 1), batch_size=1))
print("done", flush=True)
PY
status=0
(cd "$folder" && "$folder/venv/bin/python" fit.py >out 2>err) || status=$?
version=$("$folder/venv/bin/python" -c 'import lightning; print(lightning.__version__)')
batches=$(grep -c '^batch' "$folder/out")
echo "lightning $version: $batches of 100 batches, exit status $status"
[ "$version" = 2.6.6 ]
[ "$batches" -lt 10 ]
! grep -q '^done' "$folder/out"
[ "$status" = 0 ]
echo "as described"
