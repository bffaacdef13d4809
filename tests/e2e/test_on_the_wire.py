"""The secrecy of all packets between two hosts of a run."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from brim_lab.chaos.hosts import Host, can_make_hosts, hosts_in
from e2e.running import DEADLINE, FILES, check_ledger, joining, started, undisturbed
from e2e.wiretap import tapped
from tiers import long_after

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.netns,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun"),
]
STATE, GRADIENT = 1.2345678, 7.654321e-3
MARKS = ("--set", f"state={STATE}", "--set", f"gradient={GRADIENT}")
JOB = (str(FILES / "marked.py"), "--epochs", "4", "--global-batch-size", "64", *MARKS)
# Several in a row; parts of a sum are scaled by powers of 2.
WEIGHTS = 4 * struct.pack("<f", STATE)
GRADIENTS = [4 * struct.pack("<f", GRADIENT * 2.0**power) for power in range(-12, 13)]
WORDS = rb"round \d+ (state for w\d+|slices \d \d)"
OF_THE_MASTER = (b"/brim.Master/", b"brim files\n", b"JoinJob", b"brim-nonce")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, ...]]:
    with hosts_in(tmp_path, 2) as host_pair:
        yield host_pair


def said_between(
    hosts: tuple[Host, ...], tmp_path: Path, *options: str, address: str
) -> dict[str, bytes]:
    """Everything that passed between two hosts: at the port of the master, and between workers.

    A worker dies, so that another gets the state of one on the other host; both hosts trade
    gradients.
    """
    calm = undisturbed(*JOB)
    run_dir, options_here = hosts[0].folder / "run", ("--spares", "0", "--workers-here", "1")
    words = ("--workers", "2", *options_here, "--listen", address, "--agents", "2", *options)
    faults = ("--faults", "kill rank 1 at step 12")
    with (
        tapped(hosts[0], tmp_path / "packets") as streams_of_host,
        started(run_dir, "train", *JOB, *words, *faults, prefix=hosts[0].prefix) as run,
        joining(run_dir, "--workers", "1", address=address, prefix=hosts[1].prefix) as agent,
    ):
        summary = run.finish()
        assert agent.wait(timeout=DEADLINE) == 0
        found = streams_of_host()
    assert summary["weights_sha256"] == calm["weights_sha256"]
    check_ledger(run_dir)
    port = int(address.rpartition(":")[2])
    words_by_port: dict[str, bytes] = {"master": b"", "workers": b""}
    for (_, source, _, target), data in found.items():
        words_by_port["master" if port in (source, target) else "workers"] += data
    assert len(words_by_port["master"]) > 10_000
    assert len(words_by_port["workers"]) > 4 * 4096 * 30  # gradients of a step, many times
    return words_by_port


@pytest.mark.parametrize(
    "address", long_after(1, ["10.77.0.1:7077", "[fd77::1]:7077"]), ids=["IPv4", "IPv6"]
)
def test_what_passes_between_hosts_is_read_by_nobody(
    address: str, hosts: tuple[Host, ...], tmp_path: Path
) -> None:
    words_by_port = said_between(hosts, tmp_path, address=address)
    assert not re.search(WORDS, words_by_port["workers"])
    all_words = words_by_port["workers"] + words_by_port["master"]
    assert not [
        secret_word
        for secret_word in (WEIGHTS, *GRADIENTS, *OF_THE_MASTER)
        if secret_word in all_words
    ]


def test_an_insecure_run_sends_plain_gradients(hosts: tuple[Host, ...], tmp_path: Path) -> None:
    """And messages to its master are encrypted all the same."""
    words_by_port = said_between(hosts, tmp_path, "--insecure", address="10.77.0.1:7077")
    assert {kind.split()[0] for kind in re.findall(WORDS, words_by_port["workers"])} == {
        b"state",
        b"slices",
    }
    assert WEIGHTS in words_by_port["workers"]
    assert any(gradient in words_by_port["workers"] for gradient in GRADIENTS)
    assert not [
        secret_word
        for secret_word in (WEIGHTS, *GRADIENTS, *OF_THE_MASTER)
        if secret_word in words_by_port["master"]
    ]
