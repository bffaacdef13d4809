"""Hosts are alike where the same bits come of the same steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brim.domain.host_kind import HostKind, differences, unlike

KIND = HostKind(
    python="3.11",
    brim="1.0",
    torch="2.13.0+cu130 (build cf30153c)",
    cpu="GenuineIntel 6/143",
    capability="AVX512",
    instructions=("avx2", "avx512f"),
    gpus=("NVIDIA H100",),
    cudnn="9.20",
    settings={"MKL_CBWR": "AVX2"},
)


@pytest.mark.parametrize(
    ("changed", "difference_words"),
    [
        ({}, []),
        ({"python": "3.12"}, ["Python 3.11 on a and 3.12 on b"]),
        ({"brim": "1.1"}, ["brim 1.0 on a and 1.1 on b"]),
        ({"torch": ""}, ["torch 2.13.0+cu130 (build cf30153c) on a and none on b"]),
        ({"cpu": "AuthenticAMD 25/17"}, ["processor GenuineIntel 6/143 on a and AuthenticAMD 25/17 on b"]),
        ({"capability": "AVX2"}, ["processor capability AVX512 on a and AVX2 on b"]),
        ({"instructions": ("amx_tile", "avx2", "fma")},
         ["further instructions avx512f on a and amx_tile, fma on b"]),
        ({"gpus": ("NVIDIA A100",)}, ["GPUs NVIDIA H100 on a and NVIDIA A100 on b"]),
        ({"gpus": (), "cudnn": ""}, ["GPUs NVIDIA H100 on a and none on b"]),
        ({"cudnn": "9.1"}, ["cuDNN 9.20 on a and 9.1 on b"]),
        ({"settings": {}}, ["MKL_CBWR AVX2 on a and none on b"]),
        ({"python": "3.12", "brim": "2"}, ["Python 3.11 on a and 3.12 on b", "brim 1.0 on a and 2 on b"]),
    ],
)  # fmt: skip
def test_what_differs_is_said_of_both(changed: dict[str, Any], difference_words: list[str]) -> None:
    kinds = (KIND, replace(KIND, **changed))
    assert differences(kinds, ("a", "b"), device="auto") == difference_words


def test_unused_gpus_and_own_variables_do_not_matter() -> None:
    other_kind = replace(KIND, gpus=(), cudnn="", settings={"MKL_CBWR": "COMPATIBLE"})
    assert (
        differences((KIND, other_kind), ("a", "b"), device="cpu", ignored={"MKL_CBWR": "AVX2"})
        == []
    )
    assert len(differences((KIND, other_kind), ("a", "b"), device="cuda")) == 2


def test_users_learn_how_to_get_equal_bits() -> None:
    found = differences((KIND, replace(KIND, torch="2.12")), ("a", "b"), device="cpu")
    sentence = "a is not like b: torch 2.13.0+cu130 (build cf30153c) on a and 2.12 on b; the "
    assert unlike(("a", "b"), found, exact=True).startswith(f"{sentence}weights would depend")
    assert unlike(("a", "b"), found, exact=False).startswith(f"{sentence}result depends")
