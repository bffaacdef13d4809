#!/usr/bin/env bash
# pandas 3.1.1: one missing value in a column of whole numbers makes other ids the same.
#
# A column of int64 in a Parquet file, of digits in CSV or of whole numbers in JSON lines is read as float64 if any row has no
# value. From 2**53 on, floating point has not every whole number, so ids that are hashes, as those of click logs are, become
# their neighbours: of three users two are left, and a table of embeddings trains one row for both. It depends on the rows of
# a part: a file without a missing value has all ids, the next one has not, and the same user is another in it. Nothing is
# warned. pyarrow reads the same file exactly; datasets' to_pandas() loses the ids in the same way. What helps:
# dtype_backend="numpy_nullable", or dtype={"user": "Int64"} for CSV.
# Seen on 2026-11-30 with Python 3.11, pyarrow 26.0.1 and datasets 5.2.0.
#
# Needs: python3.11 with venv, some 300 MB. Fails if pandas behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pandas==3.1.1 pyarrow==26.0.1 numpy==2.4.6 datasets==5.2.0
cat >"$folder/ids.py" <<'PY'
import io

import datasets
import pandas
import pyarrow
import pyarrow.parquet

IDS = [2**53, 2**53 + 1, 2**53 + 3]
WAYS = ("parquet", "csv", "json lines", "datasets")


def read(way, ids, **options):
    """The ids, as pandas has them behind a file or datasets."""
    table = pyarrow.table({"user": pyarrow.array(ids, pyarrow.int64()), "clicks": [1] * len(ids)})
    if way == "datasets":
        return datasets.Dataset(table).to_pandas()["user"]
    if way == "parquet":
        file = io.BytesIO()
        pyarrow.parquet.write_table(table, file)
        assert pyarrow.parquet.read_table(file)["user"].to_pylist() == ids
        return pandas.read_parquet(file, **options)["user"]
    if way == "csv":
        lines = ["user,clicks", *(f"{'' if user is None else user},1" for user in ids)]
        return pandas.read_csv(io.StringIO("\n".join(lines)), **options)["user"]
    lines = [f'{{"user": {"null" if user is None else user}, "clicks": 1}}' for user in ids]
    return pandas.read_json(io.StringIO("\n".join(lines)), lines=True, **options)["user"]


print("pandas", pandas.__version__)
for way in WAYS:
    whole, missing = read(way, IDS), read(way, [*IDS, None])
    print(f"{way}: {whole.dtype}, {whole.nunique()} users; with a missing one {missing.dtype}, {missing.nunique()} users")
    assert whole.tolist() == IDS
    assert (str(missing.dtype), missing.nunique()) == ("float64", 2)
for way in WAYS[:2]:
    assert read(way, [*IDS, None], dtype_backend="numpy_nullable").dropna().tolist() == IDS
assert pandas.__version__ == "3.1.1"
PY
"$folder/venv/bin/python" -W ignore "$folder/ids.py"
echo "as described"
