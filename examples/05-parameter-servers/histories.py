"""Write MovieLens' ratings with the films that a user liked before: the column `history`.

curl -O https://files.grouplens.org/datasets/movielens/ml-100k/u.data
python examples/05-parameter-servers/histories.py u.data histories.parquet
"""

import sys
from collections import defaultdict

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq


def write_histories(source, output):
    """Write a Parquet file of `user`, `film`, `history` and `liked`, in the order of time."""
    table = pa.csv.read_csv(
        source,
        read_options=pa.csv.ReadOptions(column_names=["user", "film", "stars", "at"]),
        parse_options=pa.csv.ParseOptions(delimiter="\t"),
    ).sort_by([("at", "ascending"), ("user", "ascending"), ("film", "ascending")])
    liked_before, histories = defaultdict(list), []
    ratings = zip(*(table[name].to_pylist() for name in ("user", "film", "stars")), strict=True)
    for user, film, stars in ratings:
        histories.append(liked_before[user][-50:])
        if stars > 3:
            liked_before[user].append(film)
    liked = pa.array([int(stars > 3) for stars in table["stars"].to_pylist()])
    columns = {name: table[name] for name in ("user", "film")}
    pq.write_table(pa.table(columns | {"history": histories, "liked": liked}), output)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write_histories(*sys.argv[1:])
