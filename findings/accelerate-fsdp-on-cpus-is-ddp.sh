#!/usr/bin/env bash
# accelerate 1.15.0: FSDP on CPUs is DistributedDataParallel, without a word.
#
# Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2)) in two processes prepares a model as
# DistributedDataParallel: distributed_type is MULTI_CPU, and each process has all weights. The same for FSDP asked for by
# ACCELERATE_USE_FSDP=true, the variable that `accelerate launch --use_fsdp` sets. The plugin is read for GPUs and other
# accelerators only. Nothing is raised or warned, so a script that is tried on CPUs first shows nothing of what FSDP will do,
# neither of memory nor of checkpoints. torch's own fully_shard takes the same model on CPUs over gloo, and gives each process
# a half. Seen on 2026-12-01 with Python 3.11 and torch 2.13.0, on two processes.
#
# Needs: python3.11 with venv; torch is some GB. Fails if accelerate behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
if command -v uv >/dev/null; then
  uv pip install --quiet --python "$folder/venv/bin/python" accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
else
  "$folder/venv/bin/pip" install --quiet accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
fi
cat >"$folder/sharded.py" <<'PY'
import os
import sys
import warnings

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch.distributed.fsdp import fully_shard

plugin = FullyShardedDataParallelPlugin(fsdp_version=2) if sys.argv[1] == "plugin" else None
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model = torch.nn.Linear(8, 4)
    prepared, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
words = [str(warning.message) for warning in told if "FSDP" in str(warning.message).upper()]
numbers = sum(p.numel() for p in prepared.parameters())
sharded = fully_shard(torch.nn.Linear(8, 4))
parts = sum(p.to_local().numel() for p in sharded.parameters())
if accelerator.is_main_process:
    asked = f"asked by {sys.argv[1]}, ACCELERATE_USE_FSDP={os.environ.get('ACCELERATE_USE_FSDP')}"
    print(f"{asked}: {type(prepared).__name__}, {accelerator.distributed_type}, {numbers} numbers a process")
    print(f"torch's fully_shard: {type(sharded).__name__}, {parts} numbers a process")
assert type(prepared) is torch.nn.parallel.DistributedDataParallel
assert str(accelerator.distributed_type) == "DistributedType.MULTI_CPU"
assert (numbers, parts, words) == (36, 18, [])
accelerator.wait_for_everyone()
accelerator.end_training()
PY
export OMP_NUM_THREADS=1
"$folder/venv/bin/torchrun" --nproc-per-node 2 "$folder/sharded.py" plugin 2>"$folder/err"
ACCELERATE_USE_FSDP=true FSDP_VERSION=2 "$folder/venv/bin/torchrun" --nproc-per-node 2 "$folder/sharded.py" variable \
  2>>"$folder/err"
if grep -i fsdp "$folder/err"; then
  echo "it says something of FSDP now" >&2
  exit 1
fi
echo "as described"
