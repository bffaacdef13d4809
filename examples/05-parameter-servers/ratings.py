"""MovieLens' 100,000 ratings: who rated which film, and whether they liked it (4 or 5 of 5 stars).

curl -O https://files.grouplens.org/datasets/movielens/ml-100k/u.data
"""

from brim import data


def ratings(path, split):
    """The training or the test split of u.data, a tenth of its rows; ids are [user, film]."""
    return data.csv(
        path,
        names=["user", "film", "stars", "at"],
        delimiter="\t",
        columns=[data.vocabulary("user"), data.vocabulary("film")],
        target=data.target("stars", above=3),
        split=split,
        test=data.sample(0.1),
    )
