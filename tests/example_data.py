"""Rows in the formats of the data sets that the examples are written for.

The real sets may not be kept in this repository. These are drawn by chance, always alike, from a
known law, so that there is something to learn, and a best that can be reached.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

_SEED = 20_140_625
_COUNTS, _CATEGORIES = 13, 26  # columns of Criteo's logs
_SIZES = (1_400, 550, 60_000, 25_000, 300, 20, 11_000, 600, 3)  # values of categories, in turn
_STRONG = (4, 5, 8, 13, 14, 17, 22, 23)  # categories on which the chance of a click depends
_RATED = 100_000
_FILMS, _USERS, _GENRES = 1_682, 943, 6
# seven rows of five dots for each digit
_DIGITS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)
_EDUCATION = (
    *("Preschool", "1st-4th", "5th-6th", "7th-8th", "9th", "10th", "11th", "12th", "HS-grad"),
    *("Some-college", "Assoc-voc", "Assoc-acdm", "Bachelors", "Masters", "Prof-school"),
    "Doctorate",
)
_OTHERS = {  # columns of the census with a few values: how many
    "workclass": 9,
    "marital-status": 7,
    "occupation": 15,
    "relationship": 6,
    "race": 5,
    "gender": 2,
    "native-country": 42,
}


def write_clicks(path: Path, rows: int) -> None:
    """Write display logs as Criteo's: label, I1 to I13, C1 to C26, tabs between them.

    Some counts and categories are missing, most values of large categories are rare, and two of the
    categories matter together. With the chance of each row known, the AUC is 0.868 on the last
    tenth of 40,000.
    """
    chance = np.random.default_rng(_SEED)
    logit = np.full(rows, -1.6)
    columns: list[NDArray[np.str_]] = []
    for number in range(_COUNTS):
        count = np.floor(chance.lognormal(0.5 + number % 4, 1.4, rows)).astype(np.int64)
        missing = chance.random(rows) < 0.1 * (number % 4)
        logit += np.where(missing, -0.2, 0.12 * (-1) ** number * np.log1p(count)) * (number < 6)
        columns.append(np.where(missing, "", count.astype(str)))
    places: list[NDArray[np.int64]] = []
    for number in range(_CATEGORIES):
        size = _SIZES[number % len(_SIZES)]
        place = np.floor(size * chance.random(rows) ** 4).astype(np.int64)
        missing = chance.random(rows) < 0.15 * (number % 3)
        names = np.array([f"{name:08x}" for name in chance.integers(2**32, size=size)])
        if number in _STRONG:
            logit += np.where(missing, 0.0, chance.normal(0.0, 0.9, size)[place])
        places.append(place)
        columns.append(np.where(missing, "", names[place]))
    logit += 0.6 * np.where((places[5] + places[8]) % 2, 1.0, -1.0)
    clicked = 1.0 / (1.0 + np.exp(-logit))
    label = (chance.random(rows) < clicked).astype(np.int64).astype(str)
    path.write_text("".join("\t".join(row) + "\n" for row in zip(label, *columns, strict=True)))


def write_census(path: Path, rows: int = 48_842) -> None:
    """Write people as the Adult census income table has them, as Parquet.

    With the chance of each row known, the AUC is 0.931, and 0.894 are right; the guess that no
    person is rich is right for 0.811.
    """
    chance = np.random.default_rng(_SEED)
    age, hours = chance.integers(17, 91, rows), chance.integers(1, 100, rows)
    degree = np.floor(16 * chance.beta(4.0, 2.5, rows)).astype(np.int64)
    gain = np.where(chance.random(rows) < 0.08, chance.integers(100, 100_000, rows), 0)
    loss = np.where(chance.random(rows) < 0.05, chance.integers(100, 4_400, rows), 0)
    logit = 0.45 * (degree - 9.0) + 0.04 * (hours - 40.0) - ((age - 50.0) / 16.0) ** 2
    logit += 0.3 * np.log1p(gain) + 0.15 * np.log1p(loss) - 1.8
    table: dict[str, object] = {}
    for name, size in _OTHERS.items():
        place = np.floor(size * chance.random(rows) ** 2).astype(np.int64)
        logit += chance.normal(0.0, 0.8, size)[place]
        table[name] = [f"{name}-{name_index}" for name_index in place]
    rich = 1.0 / (1.0 + np.exp(-logit))
    table |= {
        "education": [_EDUCATION[degree_index] for degree_index in degree],
        "age": age,
        "educational-num": degree + 1,
        "hours-per-week": hours,
        "capital-gain": gain,
        "capital-loss": loss,
        "income": np.where(chance.random(rows) < rich, ">50K", "<=50K"),
    }
    parquet.write_table(pa.table(table), path)


def write_digits(folder: Path, images: int = 4_000) -> None:
    """Write images of digits as MNIST's: a pair of idx files.

    Each digit is moved, brighter or darker, with noise over it.
    """
    chance = np.random.default_rng(_SEED)
    dots = [[[int(dot) for dot in row] for row in digit.split()] for digit in _DIGITS]
    shapes = np.kron(np.array(dots, dtype=np.float64), np.ones((1, 2, 3)))  # 14 by 15
    label = chance.integers(10, size=images)
    image = chance.normal(0.0, 30.0, (images, 28, 28))
    moved = zip(*chance.integers(5, 10, (2, images)), strict=True)
    light = chance.uniform(120.0, 250.0, images)
    for number, (down, right) in enumerate(moved):
        image[number, down : down + 14, right : right + 15] += light[number] * shapes[label[number]]
    pixels = np.clip(image, 0, 255).astype(np.uint8)
    for name, array in (("images-idx3", pixels), ("labels-idx1", label.astype(np.uint8))):
        head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
        packed = gzip.compress(head + array.tobytes(), compresslevel=1, mtime=0)
        (folder / f"made-{name}-ubyte.gz").write_bytes(packed)


def write_ratings(path: Path) -> None:
    """Write ratings as MovieLens' u.data: user, film, stars, time, tabs between them.

    Each user likes a few genres, watches more of these, and gives them more stars.
    """
    chance = np.random.default_rng(_SEED)
    genre, fame = chance.integers(_GENRES, size=_FILMS), chance.lognormal(0.0, 1.0, _FILMS)
    likes = chance.normal(0.0, 1.5, (_USERS, _GENRES))
    share = chance.lognormal(0.0, 0.8, _USERS)
    seen = np.clip(np.round(_RATED * share / share.sum()), 20, 700).astype(np.int64)
    lines: list[str] = []
    for user in range(_USERS):
        liking = likes[user, genre]
        weight = fame * np.exp(0.6 * liking)
        films = chance.choice(_FILMS, seen[user], replace=False, p=weight / weight.sum())
        stars = np.clip(np.round(2.9 + 0.9 * liking + chance.normal(0.0, 0.6, _FILMS)), 1, 5)
        times = chance.integers(874_724_710, 893_286_638, _FILMS)
        lines += [f"{user + 1}\t{film + 1}\t{stars[film]:.0f}\t{times[film]}\n" for film in films]
    path.write_text("".join(lines))
