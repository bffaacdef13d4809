"""The code that a tenant hands in, or puts in place of it, is no trouble of anybody else's."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import process_time

import pytest

from brim.agent.code import keep_code_apart
from brim.backends.processes import Launch
from brim.domain.inference import Inference
from brim.domain.job import JobSpec
from brim.domain.submission import check_spec
from brim.errors import EnvironmentFault, SpecError
from brim.host.clock import monotonic
from brim.runs.training_file import check_training_file
from brim.storage.bundles import LARGEST, MOST_FILES, digest_of, pack, read_bundle
from brim.storage.job_file import CODE, bundle_of, code_of, keep_code, kept_bundle, write_job
from brim.user_code import own_code
from brim.user_code.own_code import CodeFile, collect, parse
from edges.test_runs_on_nodes import FakeNodes, launch, nodes, processes
from submissions import submission

__all__ = ["launch", "nodes"]
pytestmark = pytest.mark.timeout(120)  # who opens a pipe waits for ever


# What cannot be started is refused ----------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "m\0.py"},
        {"directory": "/tmp\0"},
        {"file": "", "command": ("python", "m.py\0")},
        {"parameters": {"a": "\0"}},
        {"env": {"A": "\0"}},
        {"checkpoints": "/tmp/\0"},
        {"include": ("a\0b",)},
        {"include": ("**x/*",)},
        {"include": ("a/**b",)},
        {"include": ("/etc/*",)},
        {"include": ("a/../../*",)},
        {"include": ("",)},
        {"include": (".",)},
        {"file": ""},
        {
            "inference": Inference(
                kind="evaluate", run="/r\0", checkpoints="", step=1, checkpoint="last"
            )
        },
    ],
    ids=str,
)
def test_unstartable_spec_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(SpecError):
        check_spec(replace(submission().spec, **changes))  # type: ignore[arg-type]


def test_usual_spec_is_not_refused() -> None:
    globs = ("*", "**/*", "**", "./configs/**/*.yaml", "é*.txt")
    check_spec(replace(submission().spec, include=globs, parameters={"a": "ü\n"}))


# Reading it ---------------------------------------------------------------------------------------

TERMS = b"x = " + b"1+" * 5_000 + b"1\n"
DEEP = b"x = " + b"(" * 5_000 + b")" * 5_000 + b"\n"
NESTED = b"".join(b" " * depth + b"if x:\n" for depth in range(99)) + b" " * 99 + b"x\n"
ODD_CODE = {
    "terms": TERMS,
    "deep": DEEP,
    "nested": NESTED,
    "lists": b"x = " + b"[" * 900 + b"]" * 900,
    "nul": b"x = 1\0",
    "no text": b"\xff\xfe\0",
    "odd encoding": b"# -*- coding: rot13 -*-\n",
    "odd imports": b"import importlib\nimportlib.import_module('a\\0b')\n"
    b"importlib.import_module('x' * 9)\nimportlib.import_module('/etc/passwd')\n"
    b"importlib.import_module('" + b"a" * 300 + b"')\n",
}


@pytest.mark.parametrize("content", ODD_CODE.values(), ids=ODD_CODE)
def test_any_kind_of_code_is_taken(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "job.py").write_bytes(content)
    code = collect(CodeFile(tmp_path / "job.py", "job.py"), limit_bytes=LARGEST)
    assert code.files == {"job.py": content}


@pytest.mark.parametrize("content", [TERMS, DEEP], ids=["terms", "deep"])
def test_code_too_deep_for_the_parser_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(SyntaxError, match=r"deeply|nested|parentheses"):
        parse(content)
    (tmp_path / "job.py").write_bytes(content)
    with pytest.raises(SpecError, match="need valid Python"):
        check_training_file(tmp_path / "job.py")


def test_a_default_too_deep_to_show_is_refused(tmp_path: Path) -> None:
    chain = "x" + ".y" * 800
    (tmp_path / "job.py").write_text(f"def model(a, b={chain}): pass\n")
    with pytest.raises(SpecError, match="need a function that can be called as model"):
        check_training_file(tmp_path / "job.py")


ODD_FILES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path),
    "directory": os.mkdir,
    "nothing": lambda path: None,
}


@pytest.fixture(params=list(ODD_FILES.values()), ids=list(ODD_FILES))
def odd(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    make: Callable[[Path], object] = request.param
    return make


def test_what_is_no_file_of_code_is_said(tmp_path: Path, odd: Callable[[Path], object]) -> None:
    odd(tmp_path / "job.py")
    spec = JobSpec(file="job.py", directory=str(tmp_path))
    with pytest.raises(SpecError):
        code_of(spec)
    with pytest.raises(SpecError):
        check_training_file(tmp_path / "job.py")
    (tmp_path / "run").mkdir()
    keep_code(tmp_path / "run", spec)  # who runs the file says what is wrong
    assert kept_bundle(tmp_path / "run") == b""


def test_special_files_as_modules_are_not_awaited(
    tmp_path: Path, odd: Callable[[Path], object]
) -> None:
    (tmp_path / "job.py").write_text("import other")
    odd(tmp_path / "other.py")
    code = collect(CodeFile(tmp_path / "job.py", "job.py"), limit_bytes=LARGEST)
    assert set(code.files) == {"job.py"}


def test_linked_module_is_code_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text("x = 1")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.py").write_text("import other")
    (tmp_path / "job" / "other.py").symlink_to(tmp_path / "elsewhere.py")
    code = collect(CodeFile(tmp_path / "job" / "job.py", "job.py"), limit_bytes=LARGEST)
    assert code.files["other.py"] == b"x = 1"


def test_kept_code_that_is_no_file_is_gone(tmp_path: Path, odd: Callable[[Path], object]) -> None:
    odd(tmp_path / CODE)
    assert kept_bundle(tmp_path) == b""
    with pytest.raises(EnvironmentFault, match="does not have the code"):
        bundle_of(tmp_path, "0" * 64)


@pytest.mark.parametrize("glob", ["**/*.txt", "**/**/**/*.txt", "*/*/*.txt", "**"])
def test_include_does_not_walk_over_a_file_system(
    tmp_path: Path, glob: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in range(5):
        (tmp_path / str(folder)).mkdir()
        (tmp_path / str(folder) / str(folder)).mkdir()
    (tmp_path / "job.py").touch()
    source = CodeFile(tmp_path / "job.py", "job.py")
    with pytest.raises(SpecError, match="which names no file"):
        collect(source, [glob], limit_bytes=LARGEST)
    monkeypatch.setattr(own_code, "_MOST_LOOKED_AT", 10)
    with pytest.raises(SpecError, match="more than 10 files in the folders to look through"):
        collect(source, [glob], limit_bytes=LARGEST)


def test_globs_name_what_they_named_before(tmp_path: Path) -> None:
    for name in ("a.txt", ".b.txt", "one/c.txt", "one/two/d.txt", "one/__pycache__/e.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "job.py").touch()
    (tmp_path / "around").symlink_to(tmp_path)

    def files_for(glob: str) -> set[str]:
        code = collect(CodeFile(tmp_path / "job.py", "job.py"), [glob], limit_bytes=LARGEST)
        return set(code.files) - {"job.py"}

    assert files_for("*.txt") == {"a.txt", ".b.txt"}
    assert files_for("**/*.txt") == {"a.txt", ".b.txt", "one/c.txt", "one/two/d.txt"}
    assert files_for("one/**/?.txt") == {"one/c.txt", "one/two/d.txt"}
    assert files_for("one/c.txt") == {"one/c.txt"}
    assert files_for("around/a.txt") == {"around/a.txt"}


# Who reads it -------------------------------------------------------------------------------------


def test_scheduler_reads_no_code_of_a_job(
    tmp_path: Path, nodes: FakeNodes, launch: Launch, odd: Callable[[Path], object]
) -> None:
    odd(tmp_path / "train.py")
    (tmp_path / "job-1").mkdir()
    odd(tmp_path / "job-1" / CODE)
    spec = replace(launch.spec, file="train.py", directory=str(tmp_path))
    asyncio.run(processes(tmp_path, nodes).start(replace(launch, spec=spec), {"n1": 1}))
    assert "--keep-code" in nodes.begun["n1"].arguments


def test_agent_keeps_the_code_of_its_job(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("x = 1")
    write_job(tmp_path, JobSpec(file="job.py", directory=str(tmp_path)))
    keep_code_apart(tmp_path)
    assert read_bundle((tmp_path / CODE).read_bytes(), digest_of(kept_bundle(tmp_path)))


@pytest.mark.parametrize(
    ("limits", "content"),
    [
        ({"memory": 32 << 20}, b"x = [" + b"1," * 400_000 + b"]\n"),
        ({"patience": 0.0}, b"x = 1"),
    ],
    ids=["memory", "time"],
)
def test_code_that_takes_too_much_is_not_kept(
    tmp_path: Path, limits: dict[str, float], content: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.py").write_bytes(content)
    write_job(tmp_path, JobSpec(file="job.py", directory=str(tmp_path)))
    started = monotonic()
    keep_code_apart(tmp_path, **limits)  # type: ignore[arg-type]
    assert monotonic() - started < 10.0
    if "patience" in limits:
        assert "could not be kept" in capfd.readouterr().err


# Bundles ------------------------------------------------------------------------------------------


def test_only_bundles_in_brims_layout_are_read() -> None:
    files = {"job.py": b"import helper\n", f"deep/{'n' * 120}/helper.py": b"x" * 513, "z": b""}
    bundle = pack(files)
    assert read_bundle(bundle, digest_of(bundle)) == files
    assert read_bundle(pack({}), digest_of(pack({}))) == {}
    for place in range(0, len(bundle), 11):
        harmed = bytearray(bundle)
        harmed[place] ^= 1 << (place % 8)
        for harmed_bundle in (
            bytes(harmed),
            bundle[:place],
            bundle[:place] + b"0" + bundle[place:],
        ):
            try:
                found = read_bundle(harmed_bundle, digest_of(harmed_bundle))
            except EnvironmentFault:
                continue
            assert pack(found) == harmed_bundle


@pytest.mark.parametrize(
    "name", ["n" * 512, "/".join(["d"] * 250), "é" * 512], ids=["long", "deep", "wide"]
)
def test_bundle_of_odd_names_takes_no_minutes(name: str) -> None:
    bundle = pack({f"{k:04}{name}"[:512]: b"" for k in range(MOST_FILES // 8)})
    started = process_time()
    tracemalloc.start()
    try:
        read_bundle(bundle, digest_of(bundle))
    except EnvironmentFault:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert process_time() - started < 5.0
    assert peak < 32 << 20
