#!/usr/bin/env bash
# optuna 5.0.0: a study that is continued with a seeded sampler tries the same values again.
#
# A study keeps its trials, and not the state of its sampler. A script that makes a sampler with a seed, so that its search can be
# repeated, and continues its study (load_if_exists=True) after it was stopped, draws from the beginning of the seed: the first
# trials of each part are those of the first one, value for value, and each is trained once more. RandomSampler
# draws all trials in this way, so a search that is stopped after every fourth one, as on machines that are taken back, never
# leaves four points; TPESampler draws the first ten so, and of twelve trials in parts of four six differ. Nothing is warned.
# GridSampler, which looks at the trials of the study, goes on. What helps: no seed, a seed with len(study.trials) in it, or the sampler in a pickle beside the study.
# Seen on 2026-11-30 with Python 3.11; studies in a journal in a file.
#
# Needs: python3.11 with venv, some 200 MB. Fails if optuna behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet optuna==5.0.0 numpy==2.4.6 scipy==1.17.1
cat >"$folder/search.py" <<'PY'
import sys

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

kind, seed, file = sys.argv[1], int(sys.argv[2]), sys.argv[3]
optuna.logging.set_verbosity(optuna.logging.ERROR)
samplers = {
    "tpe": lambda: optuna.samplers.TPESampler(seed=seed),
    "random": lambda: optuna.samplers.RandomSampler(seed=seed),
    "grid": lambda: optuna.samplers.GridSampler({"rate": [n / 16 for n in range(16)]}, seed=seed),
}
study = optuna.create_study(
    study_name="rates", storage=JournalStorage(JournalFileBackend(file)), load_if_exists=True, sampler=samplers[kind]()
)
study.optimize(lambda trial: (trial.suggest_float("rate", 0, 1) - 0.3) ** 2, n_trials=4)
print(optuna.__version__, *(round(trial.params["rate"], 4) for trial in study.trials))
PY
parts() { # the values of all trials of three parts of four
  local part
  for part in 1 2 3; do
    "$folder/venv/bin/python" -W ignore "$folder/search.py" "$1" "$(($2 * part))" "$folder/$1-$2"
  done | tail -1
}
check() { # the sampler, its seed or 0, how many of the twelve trials differ
  local version values
  read -r version values <<<"$(parts "$1" "$2")"
  echo "optuna $version, $1, $3 of twelve trials differ: $values"
  test "$version" = 5.0.0
  test "$(tr ' ' '\n' <<<"$values" | sort -u | wc -l)" = "$3"
}
check random 0 4
check tpe 0 6
check grid 0 12
check random 1 12 # the seeds 1, 2 and 3
echo "as described"
