"""Prints of rank 0 are shown once, whichever worker rank 0 is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from brim.agent import prints as agents
from brim.coordination.job.launches import mark_of_start
from brim.coordination.job.membership import Member, World
from brim.runs.prints import Prints, Repeats
from brim.telemetry.history import RunReader
from recorded_run import RecordedRun, spec


def printed(run: Path, worker: str, text: str) -> None:
    (run / "logs").mkdir(exist_ok=True)
    with (run / "logs" / f"{worker}.log").open("a") as log:
        log.write(text)


def test_successors_print_from_their_takeover(tmp_path: Path) -> None:
    run, reader = RecordedRun(tmp_path, spec(), samples=8192), RunReader(tmp_path)
    prints = Prints(tmp_path, reader.history)

    def fresh() -> list[str]:
        reader.poll()
        return prints.fresh(reader.history)

    for worker in ("w0", "w1"):
        printed(tmp_path, worker, "reading\n")
    assert fresh() == []  # nobody has a rank yet
    run.begin()
    assert fresh() == ["reading"]
    run.train(2)
    printed(tmp_path, "w0", "loss 1\nloss")
    printed(tmp_path, "w1", "of rank 1\n")
    assert fresh() == ["loss 1"]
    printed(tmp_path, "w0", " 2\n")
    run.lose(0)
    assert fresh() == ["loss 2"]
    printed(tmp_path, "w1", "loss 3\n")
    assert fresh() == ["loss 3"]
    printed(tmp_path, "w1", f"{mark_of_start(2)}\nloss 4\n")
    assert fresh() == ["loss 4"], "each start is told otherwise"


def test_a_late_reader_sees_no_repeated_successor(tmp_path: Path) -> None:
    run, reader = RecordedRun(tmp_path, spec(), samples=8192), RunReader(tmp_path)
    prints = Prints(tmp_path, reader.history)

    def fresh() -> list[str]:
        reader.poll()
        return prints.fresh(reader.history)

    assert fresh() == []
    for worker in ("w0", "w1"):
        printed(tmp_path, worker, "begun\n")
    run.begin()
    assert fresh() == ["begun"]
    run.lose(0)
    printed(tmp_path, "w1", "loss 3\n")
    assert fresh() == ["loss 3"]


def test_earlier_lives_are_not_shown_again(
    tmp_path: Path,
) -> None:
    run = RecordedRun(tmp_path, spec(), samples=8192)
    run.begin()
    printed(tmp_path, "w0", "before\n")
    reader = RunReader(tmp_path)
    reader.poll()
    prints = Prints(tmp_path, reader.history)
    assert prints.fresh(reader.history) == []
    run.form(["w0", "w1"], "start", seconds=0.0)
    printed(tmp_path, "w0", "after\n")
    reader.poll()
    assert prints.fresh(reader.history) == ["after"]
    run.form(["w7", "w1"], "w0 lost", seconds=0.0)
    reader.poll()
    assert prints.fresh(reader.history) == []


def test_a_remote_log_is_shown_from_its_start(tmp_path: Path) -> None:
    run, reader = RecordedRun(tmp_path, spec(), samples=8192), RunReader(tmp_path)
    prints = Prints(tmp_path, reader.history)

    def fresh() -> list[str]:
        reader.poll()
        return prints.fresh(reader.history)

    printed(tmp_path, "w0", "loss 1\n")
    run.begin()
    assert fresh() == ["loss 1"]
    run.form(["w7", "w1"], "w0 leaves", seconds=0.0)
    assert fresh() == []
    printed(tmp_path, "w7", "loss 2\n")
    assert fresh() == ["loss 2"]
    run.form(["w8", "w1"], "w7 leaves", seconds=0.0)
    printed(tmp_path, "w8", "loss 3\n")  # before anybody looked
    assert fresh() == ["loss 3"]
    reader.poll()
    run.form(["w9", "w1"], "w8 leaves", seconds=0.0)
    printed(tmp_path, "w9", "loss 4\n")  # after the records were looked at, before the logs were
    assert prints.fresh(reader.history) == []
    assert fresh() == ["loss 4"]


def test_heavy_printing_is_shown_without_delay(tmp_path: Path) -> None:
    """Line by line, prints are read by and by; and to their end where the run, or the worker, has
    ended.
    """
    run, reader = RecordedRun(tmp_path, spec(), samples=8192), RunReader(tmp_path)
    prints = Prints(tmp_path, reader.history)
    run.begin()
    printed_lines = [f"{number:09d}" for number in range(1_000_000)]
    printed(tmp_path, "w0", "\n".join(printed_lines) + "\n")
    reader.poll()
    first_lines = prints.fresh(reader.history)
    assert 100_000 < len(first_lines) < 800_000
    run.lose(0)
    printed(tmp_path, "w1", "w1 has rank 0 now\n")
    reader.poll()
    assert first_lines + prints.fresh(reader.history) == [*printed_lines, "w1 has rank 0 now"]
    printed(tmp_path, "w1", "\n".join(printed_lines) + "\n")
    assert len(first_lines := prints.fresh(reader.history)) < 800_000
    assert first_lines + list(prints.rest(reader.history)) == printed_lines


def test_an_agent_forwards_last_lines_of_rank_0(tmp_path: Path) -> None:
    prints = agents.PrintForwarder(tmp_path)
    for worker in ("w1", "w2"):
        printed(tmp_path, worker, "begun\n")
    assert prints.begin(world(1, "w1", "w2")) == ""
    assert (prints.worker, prints.fresh()) == ("w1", "begun\n")
    printed(tmp_path, "w1", "loss 1\nloss")
    assert prints.fresh() == "loss 1\n"
    printed(tmp_path, "w1", " 2\n")
    assert prints.begin(world(2, "w2")) == "loss 2\n"
    assert (prints.worker, prints.fresh()) == ("w2", "")
    printed(tmp_path, "w2", "loss 3\n" * 10_000)
    first, *rest = prints.fresh().splitlines()
    assert first.startswith("[7,")
    assert rest == ["loss 3"] * len(rest)
    assert prints.begin(world(3, "w9")) == ""  # of another host
    assert prints.fresh() == ""


def world(round: int, *workers: str) -> World:
    members = tuple(Member(worker=worker, agent="a2", address="10.0.0.2:1") for worker in workers)
    return World(round=round, members=members, donors={}, restore=False, shares=(1,) * len(members))


def test_an_agent_forwards_last_lines_of_failures(tmp_path: Path) -> None:
    prints = agents.PrintForwarder(tmp_path)
    members = tuple(Member(worker=name, agent="b", address="") for name in ("w0", "w1"))
    for worker, text in (("w0", "of rank 0\n"), ("w1", "x" * 99_999 + "\nwhy\n")):
        printed(tmp_path, worker, text)
    world = World(round=1, members=members, donors={}, restore=False, shares=(4, 4))
    assert prints.begin(world) == ""
    assert prints.last_words("w0") == ""  # it is passed on as it comes
    assert prints.last_words("w7") == ""
    assert prints.last_words("w1").splitlines()[-1] == "why"
    assert len(prints.last_words("w1")) <= 17 << 10


# Of starts that fail alike -------------------------------------------------------------------------


def shown(*starts: Sequence[tuple[float, str]]) -> list[str]:
    """What is shown of the lines of starts, each with its time."""
    repeats, found = Repeats(), []
    for place, start in enumerate(starts):
        repeats.begin(after_failure=place > 0)
        for now, line in start:
            found += repeats.pass_on([line] if line else [], now=now)
    return [*found, *repeats.finish()]


WRONG = [(0.0, "usage: x"), (0.1, "x: error in 17")]
OTHER_PROCESS = [(0.0, "usage: x"), (0.1, "x: error in 18")]


def test_words_of_equal_failures_are_shown_once() -> None:
    assert shown(WRONG, [], OTHER_PROCESS, WRONG) == [
        "usage: x",
        "x: error in 17",
        "[2 more starts printed the same]",
    ]
    assert shown(WRONG, []) == ["usage: x", "x: error in 17"]


def test_start_that_differs_is_shown_whole() -> None:
    works = [(0.0, "usage: x"), (0.1, "step one")]
    words = shown(WRONG, WRONG, works)
    assert words[2:] == ["[1 more start printed the same]", "usage: x", "step one"]


def test_repeated_words_of_a_living_start_are_shown() -> None:
    lives = [(0.0, "usage: x"), (6.0, "")]
    assert shown(WRONG, lives) == ["usage: x", "x: error in 17", "usage: x"]
