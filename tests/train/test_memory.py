"""Page faults and resident memory of a worker, counted by the kernel, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

COUNTING = """
import gc, mmap, os, resource, torch
from brim.tensors.memory import give_back, have_ready, have_room, keep_what_is_freed, make_own

torch.set_num_threads(1)  # a fork finds no others
MIB = 1 << 20

def faults_of(act):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    act()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) * mmap.PAGESIZE // MIB

def in_a_fork(act):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0

def ones(mib):
    return torch.ones(mib * MIB, dtype=torch.uint8)

def step():
    return [ones(1) for _ in range(8)] and None
"""


def run(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNTING + code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_freed_memory_is_reused_without_faults() -> None:
    run("""
keep_what_is_freed()
for _ in range(4):  # until what is aligned finds room among what was freed
    step()
faults = faults_of(step)
assert faults < 8 * 16, faults  # of 256 pages in each MiB
""")


def test_warm_up_memory_is_returned() -> None:
    run("""
keep_what_is_freed()
parts = [ones(8) for _ in range(32)]
behind = ones(1)
del parts
much = resident_mib()
give_back()
assert resident_mib() < much - 128, (much, resident_mib())
""")


def test_what_a_small_model_needs_again_is_kept() -> None:
    run("""
keep_what_is_freed()
for _ in range(4):  # until what is aligned finds room among what was freed
    step()
give_back()
faults = faults_of(step)
assert faults < 8 * 16, faults
""")


def test_room_for_contributions_is_had_early() -> None:
    run("""
keep_what_is_freed()
have_room([ones(2)], copies=8)  # twice a step: what is aligned needs more than its size
faults = faults_of(step)  # no other step before
assert faults < 8 * 32, faults
before = resident_mib()
have_room([ones(64)], copies=4)  # of a large model
assert resident_mib() < before + 72
""")


def test_small_models_are_copied_early() -> None:
    run("""
weights = ones(8)
def act():
    make_own([weights])
    faults = faults_of(lambda: weights.fill_(2))
    assert faults < 8 * 16, faults
in_a_fork(act)
""")


def test_large_models_stay_shared_until_written() -> None:
    run("""
weights = ones(64)
def act():
    faults = faults_of(lambda: make_own([weights]))
    assert faults < 64 * 16, faults
in_a_fork(act)
""")


def test_shared_rows_are_mapped_before_their_first_use() -> None:
    run("""
file = os.memfd_create("rows")
os.ftruncate(file, 64 * MIB)
mapped = mmap.mmap(file, 64 * MIB)
have_ready(mapped)
rows = torch.frombuffer(mapped, dtype=torch.uint8)
faults = faults_of(lambda: rows[: 16 * MIB].fill_(1))
assert faults < 16 * 16, faults
assert os.fstat(file).st_blocks * 512 <= 32 * MIB  # of large rows only those that are used take up memory
""")
