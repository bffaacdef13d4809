"""The other half of the tests, in pieces of at most an hour on two cores: tests beyond `make test` and
`make test-nodes`, random chaos, and the ratios of benchmarks.

`.ci/nightly` runs them. The result of a piece is kept in docs/nightly.json as the piece ends, whole
or not at all, and docs/nightly.md is written from it; nothing else is remembered.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "nightly.md"
RESULTS = PAGE.with_suffix(".json")
LOGS = ROOT / ".nightly"
TEST_PATHS = ("src", "lab/src", "tests")
LONGEST = 2 * 3600.0  # seconds; twice what a piece may take where nothing else runs
GRACE = 60.0  # seconds for what a piece has started to end by itself
POLL = 0.5

# They are kept, also for the long test of MPIJobs in `long-rest`.
BUILD_OPERATORS = f"{sys.executable} -m brim_lab.kubernetes build jobset trainer mpi-operator"

TRAIN = ("embeddings", "tensors", "train", "worker")
RUN = (*TRAIN, "agent", "coordination", "domain", "host", "loop.py", "master", "runs")
HOSTS = ("joined", "wire", "storage")
CLUSTER = ("backends", "client.py", "coordination", "node", "policies", "scheduler", "storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One of the commands that make up a night.

    Args:
        name: by which it is asked for.
        about: its content, in a few words.
        command: from the root of the repository.
        parts: paths of which a change calls for it.
        tests: files and folders whose long tests it runs.
    """

    name: str
    about: str
    command: tuple[str, ...]
    parts: tuple[str, ...]
    tests: tuple[str, ...] = ()

    def concerns(self, path: str) -> bool:
        """Whether a change of that path calls for it."""
        return any(
            f"{path}/".startswith(f"{part}/") or part.startswith(f"{path.rstrip('/')}/")
            for part in (*self.parts, *self.tests)
        )


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a piece.

    Args:
        commit: that was run, with a `+` where files differed from it.
        date: of its end, in UTC.
        seconds: that it took.
        failed: names of tests, seeds or ratios; or a sentence if the piece itself came to no end.
    """

    commit: str
    date: str
    seconds: float
    passed: int
    skipped: int
    failed: list[str]


def _brim(*parts: str) -> tuple[str, ...]:
    return tuple(f"src/brim/{part}" for part in parts)


def _long(name: str, description: str, parts: tuple[str, ...], files: str) -> Piece:
    tests = tuple(f"tests/e2e/test_{file}.py" for file in files.split())
    command = ("make", "test-long", f"TESTS={shlex.join(tests)}")
    return Piece(name=name, about=description, command=command, parts=parts, tests=tests)


def _chaos(name: str, description: str, parts: tuple[str, ...], words: str) -> list[Piece]:
    """A hundred seeds, in two halves."""
    return [
        Piece(
            name=f"chaos-{name}-{first}",
            about=f"{description}: seeds {first} to {first + 49}",
            command=(
                *(sys.executable, "-m", "brim.cli", "chaos", *words.split()),
                *("--runs", "50", "--seed", str(first)),
            ),
            parts=("lab/src/brim_lab/chaos", *parts),
        )
        for first in (1, 51)
    ]


def _ratios(name: str, *parts: str) -> Piece:
    return Piece(
        name=f"ratios-{name}",
        about=f"the ratios of benchmarks/{name}",
        command=(sys.executable, "-m", "benchmarks.harness.ratios", name),
        parts=(f"benchmarks/{name}", "benchmarks/harness", *_brim(*parts)),
    )


def node_tests() -> tuple[str, ...]:
    """Return the files of `make test-nodes`."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", "")
    (files,) = re.findall(r"^NODE_TESTS := (.+)$", makefile, re.MULTILINE)
    return tuple(files.split())


def _rest(other_pieces: Iterable[Piece]) -> Piece:
    """The long tests that no other piece has: a new file is in here until it has its place."""
    ignored = [f"--ignore={path}" for piece in other_pieces for path in piece.tests]
    return Piece(
        name="long-rest",
        about="long tests of everything else",
        command=("make", "test-long", f"TESTS={shlex.join([*TEST_PATHS, *ignored])}"),
        parts=TEST_PATHS,
    )


_TESTS = (
    _long(
        "long-training",
        "long tests of workers that die, hang, join and leave",
        _brim(*RUN, "data"),
        "any_data anything_may_die asynchronous bad_starts checkpoints compiled imports master_dies "
        "same_bits stuck_or_lost users_mistakes",
    ),
    _long(
        "long-models",
        "long tests of embeddings, serving and the use of a model",
        _brim(*TRAIN, "models", "serving", "data"),
        "embeddings_by_rows keyed_embedding online_learning servers serving using_a_model",
    ),
    _long(
        "long-commands",
        "long tests of commands: Trainer, Lightning, XGBoost; TensorFlow and JAX, which it installs",
        _brim("launch", "coordination", "master", "agent", "xgboost"),
        "any_command boosting other_libraries terminals",
    ),
    _long(
        "long-hosts",
        "long tests of several hosts",
        _brim(*RUN, *HOSTS),
        "a_job_travels agents_of_one_machine experiments_on_hosts hosts_come_and_go https kept_runs "
        "master_moves on_the_wire pods silent_hosts slow_and_bad_hosts slurm two_hosts",
    ),
    _long(
        "long-scheduler",
        "long tests of the scheduler and its nodes",
        _brim(*CLUSTER),
        "backup bad_days cluster_chaos forgetting joined_nodes leftovers migrations "
        "port_between_masters scheduler scheduler_moves services services_on_hosts several_nodes",
    ),
    Piece(
        name="long-zoo",
        about="the models, optimizers and data sets that the gate leaves out",
        command=("make", "test-long", "TESTS=tests/zoo"),
        parts=_brim(
            *TRAIN, "data", "models", "loop.py", "keras.py", "lightning.py", "transformers.py"
        ),
        tests=("tests/zoo",),
    ),
    Piece(
        name="long-site",
        about="the site of all documents: its links, its search, and that it asks no host",
        command=("make", "test-long", "TESTS=tests/edges/test_site.py"),
        parts=("docs", "examples", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
        tests=("tests/edges/test_site.py",),
    ),
    Piece(
        name="nodes",
        about="long tests on nodes of Kubernetes (as root)",
        command=("sh", "-c", f"{BUILD_OPERATORS} && make test-nodes CASES=long"),
        parts=(*_brim("kubernetes"), "lab/src/brim_lab/kubernetes", "deploy"),
        tests=node_tests(),
    ),
)
JOB = "benchmarks/chaos/job.py"
PYTEST = (sys.executable, "-m", "pytest", "-n", "4", "--dist", "loadfile", "-m", "")
CAPTURED = _brim("train/captured", "train/capturing.py", "train/step.py")
CAPTURED_TESTS = tuple(
    f"tests/zoo/test_{file}.py" for file in ("models", "optimizers_and_data", "lives")
)
PIECES: Mapping[str, Piece] = {
    piece.name: piece
    for piece in (
        *_TESTS,
        _rest(_TESTS),
        *_chaos("one-host", "chaos on one host", _brim(*RUN), f"{JOB} --epochs 24 --deadline 120"),
        *_chaos(
            "servers",
            "chaos with parameter servers",
            _brim(*RUN, "models"),
            "tests/e2e/files/keyed_embedding.py --ps 2 --epochs 8 --deadline 120",
        ),
        *_chaos(
            "hosts",
            "chaos on three hosts (as root)",
            _brim(*RUN, *HOSTS),
            f"{JOB} --hosts 3 --workers 2:4 --deadline 300 --kinds kill,term,stop,add,remove,"
            "kill-master,stop-master,kill-agent,term-agent,kill-host,kill-everything,cut,cut-from,"
            "cut-to,delay",
        ),
        *_chaos(
            "cluster",
            "chaos of a scheduler and its jobs",
            _brim(*CLUSTER),
            f"{JOB} --cluster --set pause=0.008 --epochs 4 --heartbeat-timeout 3s --deadline 200",
        ),
        *_chaos(
            "services",
            "chaos of a scheduler with an online service beside its jobs",
            _brim(*CLUSTER, "launch"),
            f"{JOB} --cluster --service --set pause=0.008 --epochs 4 --heartbeat-timeout 3s "
            "--deadline 200",
        ),
        *_chaos(
            "captured",
            "chaos on one host, its steps replayed",
            (*CAPTURED, *_brim(*RUN)),
            f"{JOB} --capture --epochs 72 --deadline 200",
        ),
        Piece(
            name="captured-zoo",
            about="models, optimizers and data sets, their steps replayed",
            command=("env", "BRIM_TEST_CAPTURED=1", *PYTEST, "-k", "exact", *CAPTURED_TESTS),
            parts=(*CAPTURED, *CAPTURED_TESTS),
        ),
        _ratios("recovery", *RUN),
        _ratios("hosts", *RUN, *HOSTS),
        _ratios("resize", *RUN),
        _ratios("servers", *RUN, "models"),
        _ratios("cost", *TRAIN),
        _ratios("embeddings", *TRAIN, "models"),
        _ratios("stragglers", "coordination", *TRAIN),
        _ratios("warm-start", *CLUSTER),
        _ratios("live-overhead", *CLUSTER),
        _ratios("live-experiments", *CLUSTER, "simulator"),
    )
}


def outcome(log: str, status: int | None) -> tuple[int, int, list[str]]:
    """Return how many passed, how many were skipped, and the failed ones.

    Args:
        log: the output of a piece: the summary of pytest, or lines that end with `held` or
            `BROKEN` for a seed or a ratio.
        status: with which it ended; None where it had to be ended.

    >>> outcome("seed 1: kill master at step 3: held (4.2 s)\\nseed 2: term: BROKEN (9.1 s)", 1)
    (1, 0, ['seed 2'])
    """
    _, _, summary = log.rpartition("short test summary info")
    totals = re.findall(r"^=+ (.* in [\d.]+s.*) =+$", summary, re.MULTILINE)[-1:]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", "".join(totals))}
    claims = [] if totals else re.findall(r"^([^:\n]+): .*: (held|BROKEN)\b", log, re.MULTILINE)
    held_count = sum(verdict == "held" for _, verdict in claims)
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", summary, re.MULTILINE)
    failed += [claim for claim, verdict in claims if verdict == "BROKEN"]
    passed = counts.get("passed", 0) + held_count
    if status is None:
        failed.append(f"no end within {LONGEST / 3600:.0f} hours")
    elif status and not failed:
        failed.append(f"it ended with status {status}")
    elif not status and not passed:
        failed.append("it ran nothing")
    return passed, counts.get("skipped", 0), failed


def version() -> str:
    """Return the last commit that changed more than results, with a `+` where files differ."""

    def git(*words: str) -> str:
        excluded = [".", *(f":(exclude){path.relative_to(ROOT)}" for path in (PAGE, RESULTS))]
        command = ["git", "-C", str(ROOT), *words, "--", *excluded]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    return git("log", "-1", "--format=%h", "--abbrev=12") + ("+" if git("status", "-s") else "")


def results() -> dict[str, Result]:
    if not RESULTS.exists():
        return {}
    return msgspec.json.decode(RESULTS.read_bytes(), type=dict[str, Result])


def keep(name: str, result: Result) -> None:
    """Put a result in place of the one before, and write the page anew."""
    last = results() | {name: result}
    results_kept = {piece: last[piece] for piece in PIECES if piece in last}
    _replace(
        RESULTS, msgspec.json.format(msgspec.json.encode(results_kept), indent=1).decode() + "\n"
    )
    _replace(PAGE, render(results_kept))


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_text(text)
    os.replace(draft, path)


def render(last: Mapping[str, Result]) -> str:
    """Return the page."""
    lines = [
        "# The other half of the tests",
        "",
        "`make test` and `make test-nodes` leave tests out that add cases to what quicker ones show",
        "([tests/tiers.py](../tests/tiers.py)). `.ci/nightly` runs them in pieces, with random chaos "
        "and the ratios",
        "of benchmarks, and writes this page: the last result of each piece, which may be of another "
        "commit than",
        "its neighbour's. A `+` behind a commit: files differed from it.",
        "",
        "| piece | what | passed | skipped | failed | minutes | commit | date (UTC) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for piece in PIECES.values():
        if result := last.get(piece.name):
            failed = "<br>".join(f"`{name}`".replace("|", "\\|") for name in result.failed) or "–"
            counts = [str(result.passed), str(result.skipped), failed]
            cells = [*counts, f"{result.seconds / 60:.0f}", f"`{result.commit}`", result.date]
        else:
            cells = ["not run yet", *["–"] * 5]
        lines.append(f"| {' | '.join((piece.name, piece.about, *cells))} |")
    return "\n".join([*lines, ""])


def run(piece: Piece, show: Callable[[str], object]) -> Result:
    """Run a piece to its end.

    Args:
        show: is handed the output of the piece, as it comes.
    """
    LOGS.mkdir(exist_ok=True)
    log, version_before, started = LOGS / f"{piece.name}.log", version(), time.monotonic()
    with log.open("wb") as output, log.open(encoding="utf-8", errors="replace") as printed:
        process = subprocess.Popen(
            piece.command,
            cwd=ROOT,
            env={**os.environ, "PYTEST_ADDOPTS": "-o console_output_style=count"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            while (status := process.poll()) is None and time.monotonic() < started + LONGEST:
                show(printed.read())
                time.sleep(POLL)
        finally:
            _end(process)
        show(printed.read())
    passed, skipped, failed = outcome(log.read_text(errors="replace"), status)
    version_after = version()
    return Result(
        commit=version_after
        if version_after == version_before
        else version_before.rstrip("+") + "+",
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        seconds=round(time.monotonic() - started, 1),
        passed=passed,
        skipped=skipped,
        failed=failed,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a piece with all that it started, as Control-C would, and then by force."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)


def show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def describe(piece: Piece, result: Result | None) -> str:
    """Return the line of `--list`."""
    if result is None:
        last = "not run yet"
    else:
        verdict = f"{len(result.failed)} failed" if result.failed else "passed"
        last = f"{verdict} on {result.commit}, {result.seconds / 60:.0f} min"
    return f"{piece.name:24}{last:40}{piece.about}"


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=".ci/nightly",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Run what `make test` and `make test-nodes` leave out, piece by piece, each "
        "shorter than an hour on\ntwo idle cores, and write docs/nightly.md: commit it.",
        epilog="""examples:
  .ci/nightly                            all pieces without a result for this commit; one that
                                         was interrupted is run again, no other
  .ci/nightly long-zoo chaos-hosts-1     these, again if need be
  .ci/nightly --list                     all pieces, and how each ended last
  .ci/nightly --list src/brim/wire       those that a change of these files calls for
  .ci/nightly --list $(git diff --name-only main)

What a piece prints is kept in .nightly/PIECE.log. `nodes` needs what .ci/run sets up, and root.
Exit status: 0 all passed, 1 some failed, 130 interrupted.""",
    )
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help="run only these")
    parser.add_argument(
        "--list", nargs="*", metavar="PATH", help="show the pieces that concern PATHs, or all"
    )
    arguments = parser.parse_args(words)
    if unknown := set(arguments.pieces) - PIECES.keys():
        parser.error(f"no such piece: {', '.join(sorted(unknown))}; known: {', '.join(PIECES)}")
    return arguments


def main(words: Sequence[str]) -> int:
    arguments, last = parse(words), results()
    if arguments.list is not None:
        for piece in PIECES.values():
            if not arguments.list or any(map(piece.concerns, arguments.list)):
                show(describe(piece, last.get(piece.name)) + "\n")
        return 0
    commit = version()
    open_pieces = [name for name in PIECES if name not in last or last[name].commit != commit]
    if commit.endswith("+"):  # nobody knows whether they are the same files as before
        open_pieces = list(PIECES)
    names = arguments.pieces or open_pieces
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed = 0
    for number, name in enumerate(names, start=1):
        show(f"== {name}, {number} of {len(names)}: {PIECES[name].about}\n")
        try:
            result = run(PIECES[name], show)
        except KeyboardInterrupt:
            show(f"\n{name} was interrupted: it counts as not run\n")
            return 130
        keep(name, result)
        show(f"{describe(PIECES[name], result)}\n")
        failed += bool(result.failed)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
