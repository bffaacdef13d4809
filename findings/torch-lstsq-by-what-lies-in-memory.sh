#!/usr/bin/env bash
# torch 2.13.0: on a CPU, torch.linalg.lstsq gives other bits, or another rank, by what was in memory before.
#
# Its default driver there, gelsy, hands LAPACK an array of pivots (jpvt) that nobody has set to zero. A number in it that is
# not zero fixes a column in its place. So the same matrix and the same threads give other bits in one process and the next,
# and a matrix that is not of full rank may be found to have rank 0, with zeros as the solution. Within a batch, each matrix is
# solved with the pivots of the one before. torch.use_deterministic_algorithms(True) fills such memory, so all columns are
# fixed: the same bits each time, and rank 0 where it is 63. driver="gelsd" has none of this.
# Seen in pykan 0.2.8: the weights of KAN(seed=42) differ between two calls. Reported as pytorch/pytorch#187411.
# Seen on 2026-11-30 with Python 3.11.
#
# Needs: python3.11 with venv, some 5 GB for torch. Fails if torch behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
if command -v uv >/dev/null; then
  uv pip install --quiet --python "$folder/venv/bin/python" torch==2.13.0 numpy==2.4.6
else
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
fi
cat >"$folder/squares.py" <<'PY'
import torch

torch.set_num_threads(1)


def solution(matrix, before, driver):
    """The solution where freed memory has a number in it."""
    used = [torch.full((matrix.shape[-1],), before, dtype=torch.int32) for _ in range(2000)]
    del used
    return torch.linalg.lstsq(matrix, torch.ones(len(matrix), 1), driver=driver).solution


def rank(matrices, driver):
    return torch.linalg.lstsq(matrices, torch.ones(*matrices.shape[:-1], 1), driver=driver).rank.tolist()


print(torch.__version__)
torch.manual_seed(0)
tall = torch.randn(20, 7)
lower = torch.diag(torch.ones(63), 1)  # rank 63
drivers = "gelsy", "gelsd"
same = [torch.equal(solution(tall, 0, driver), solution(tall, 1, driver)) for driver in drivers]
batch = [rank(torch.stack([torch.eye(64), lower]), driver) for driver in drivers]
torch.use_deterministic_algorithms(True)
filled = [rank(lower, driver) for driver in drivers]
print(drivers, "the same bits:", same, "ranks of a batch:", batch, "with filled memory:", filled)
assert same == [False, True], same
assert batch == [[64, 0], [64, 63]], batch
assert filled == [0, 63], filled
assert torch.__version__.split("+")[0] == "2.13.0"
PY
"$folder/venv/bin/python" "$folder/squares.py"
echo "as described"
