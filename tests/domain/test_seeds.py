"""Derived seeds are stable and do not collide where neighbours meet."""

from brim.domain.seeds import StepSeeds, mix


def test_the_seeds_never_change_between_versions() -> None:
    assert mix() == 16294208416658607535
    assert mix(0) == 6791897765849424158
    assert mix(0, 0) == 1825907084063272085
    assert mix(1, 2, 3) == 2398984789594495674
    assert mix(-1) == 11285384103112802858


def test_neighbours_do_not_collide() -> None:
    seeds = {mix(job, step, part) for job in range(10) for step in range(100) for part in range(10)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_every_bit_flips_half_of_the_time() -> None:
    flips = [(mix(7, step) ^ mix(7, step + 1)).bit_count() for step in range(1000)]
    assert 31 < sum(flips) / 1000 < 33


def test_seeds_of_steps_are_those_of_mix() -> None:
    for job in (0, -1, 1 << 63):
        seeds = StepSeeds(job)
        for step in (*range(250, 260), 600, 3, 10**9, 0):
            for number in (0, 7, 1 << 41, 7):
                assert seeds.seed(step, number) == mix(job, step, number)
