#!/usr/bin/env bash
# torchmetrics 1.9.0: the AUROC of logits depends on how they are cut into batches.
#
# The classification metrics take logits as well as probabilities: where a value lies outside of [0, 1], update() applies a
# sigmoid. It looks at each batch by itself. A batch whose logits all happen to lie in [0, 1] is left as it is, so that its
# values are compared with probabilities of other batches. Four samples that are ranked without a mistake have an AUROC of 1
# in one batch, of 0.5 in two batches, and the accuracy at the default threshold changes as well. Small batches, those of a
# model that is not sure yet, and the last one of an epoch are hit most. Nothing is raised or warned. What helps: apply the
# sigmoid before update(). scikit-learn's roc_auc_score, which takes any score, says 1.
# Seen on 2026-11-30 with Python 3.11 and torch 2.13.0, on a CPU.
#
# Needs: python3.11 with venv, some 5 GB for torch. Fails if torchmetrics behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
if command -v uv >/dev/null; then
  uv pip install --quiet --python "$folder/venv/bin/python" torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0 scikit-learn==1.9.1
else
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0 scikit-learn==1.9.1
fi
cat >"$folder/logits.py" <<'PY'
from importlib.metadata import version

import torch
from sklearn.metrics import roc_auc_score
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

logits = torch.tensor([0.2, 0.95, 1.1, 2.0])
target = torch.tensor([0, 0, 1, 1])


def measured(kind, values, size):
    metric = kind()
    for part, labels in zip(values.split(size), target.split(size)):
        metric.update(part, labels)
    return float(metric.compute())


auroc = {size: measured(BinaryAUROC, logits, size) for size in (4, 2)}
accuracy = {size: measured(BinaryAccuracy, logits, size) for size in (4, 2)}
sure = {size: measured(BinaryAUROC, logits.sigmoid(), size) for size in (4, 2)}
whole = roc_auc_score(target.numpy(), logits.numpy())
print(version("torchmetrics"), "AUROC by size of batch:", auroc, "of probabilities:", sure, "scikit-learn:", whole)
print("accuracy by size of batch:", accuracy)
assert version("torchmetrics") == "1.9.0"
assert whole == 1.0
assert sure == {4: 1.0, 2: 1.0}
assert auroc == {4: 1.0, 2: 0.5}, auroc
assert accuracy == {4: 0.5, 2: 0.75}, accuracy
PY
"$folder/venv/bin/python" "$folder/logits.py"
echo "as described"
