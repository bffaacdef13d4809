#!/usr/bin/env bash
# pandas 3.1.1: DataFrame.to_json writes ten places behind the point, and small numbers as 0.0.
#
# Numbers are cut to ten places and not to ten digits: 1e-12 and 3e-11 are written as 0.0, so that scores of unlikely classes,
# learning rates and variances end as 0 in JSON lines, and a logarithm of them as minus infinity. Still smaller ones have an
# exponent: 3e-16 comes back larger than 1e-12. Of 1,000 normal numbers none comes back as it was. Nothing is warned. to_csv and
# to_parquet, read by pandas, keep every bit, and so does Python's json. What helps: one of these, or json.dumps of
# to_dict("records").
# Seen on 2026-11-30 with Python 3.11.
#
# Needs: python3.11 with venv, some 200 MB. Fails if pandas behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pandas==3.1.1 pyarrow==26.0.1 numpy==2.4.6
cat >"$folder/places.py" <<'PY'
import io
import json

import numpy
import pandas

SMALL = [3e-11, 1e-12, 3e-16, 0.1]


def behind_json(values):
    text = pandas.DataFrame({"value": values}).to_json(orient="records", lines=True)
    return text, pandas.read_json(io.StringIO(text), lines=True)["value"].to_numpy()


def changed(values, found):
    return int((numpy.asarray(values) != found).sum())


print("pandas", pandas.__version__)
text, found = behind_json(SMALL)
print("written:", text.split(), "read:", found.tolist())
assert found.tolist() == [0.0, 0.0, 3e-16, 0.1]

normal = numpy.random.default_rng(0).normal(size=1000)
csv = io.StringIO(pandas.DataFrame({"value": normal}).to_csv(index=False))
parquet = io.BytesIO()
pandas.DataFrame({"value": normal}).to_parquet(parquet)
counts = {
    "to_json": changed(normal, behind_json(normal)[1]),
    "to_csv": changed(normal, pandas.read_csv(csv)["value"].to_numpy()),
    "to_parquet": changed(normal, pandas.read_parquet(parquet)["value"].to_numpy()),
    "json": changed(normal, json.loads(json.dumps(normal.tolist()))),
}
print("of 1,000 normal numbers are changed by", counts)
assert counts == {"to_json": 1000, "to_csv": 0, "to_parquet": 0, "json": 0}
assert pandas.__version__ == "3.1.1"
PY
"$folder/venv/bin/python" -W ignore "$folder/places.py"
echo "as described"
