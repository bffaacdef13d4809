"""Bundles of code: their content, checks of one that comes from elsewhere, and the place where it
is unpacked.
"""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from brim.domain.job import JobSpec
from brim.errors import EnvironmentFault, SpecError
from brim.runs.starting import bundle_of as packed_for
from brim.storage import bundles
from brim.storage.bundles import LARGEST, digest_of, pack, read_bundle, unpack
from brim.storage.job_file import code_of
from brim.user_code.own_code import CodeFile, code_folder, collect, in_folder

FILES = {"job.py": b"import helper\n", "deep/er/helper.py": b"x = 1\n"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "brim" / "code"


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


# What is taken ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "files"),
    [
        ("import helper", {"helper.py"}),
        ("import helper as h, other", {"helper.py", "other.py"}),
        ("from helper import x", {"helper.py"}),
        ("def late():\n    import helper", {"helper.py"}),
        ("try:\n    import helper\nexcept ImportError:\n    pass", {"helper.py"}),
        ("import importlib\nimportlib.import_module('helper')", {"helper.py"}),
        ("import space.inner", {"space/inner.py"}),
        ("from space import inner", {"space/inner.py"}),
        # Of a package all of it: its modules may import each other by any means.
        ("import pack", {"pack/__init__.py", "pack/one.py", "pack/sub/__init__.py", "other.py"}),
        ("from pack.one import y", {"pack/__init__.py", "pack/one.py", "pack/sub/__init__.py", "other.py"}),
        ("import json, torch, missing", set()),
        ("x = 1", set()),
    ],
)  # fmt: skip
def test_local_imports_are_collected(statement: str, files: set[str], tmp_path: Path) -> None:
    modules = {
        "helper.py": "x = 1",
        "other.py": "x = 2",
        "space/inner.py": "",
        "pack/__init__.py": "from . import one",
        "pack/one.py": "from .sub import z\nimport other",
        "pack/sub/__init__.py": "z = 1",
        "unused.py": "",
    }
    write(tmp_path, modules)
    (tmp_path / "job.py").write_text(statement)
    assert set(collect(CodeFile(tmp_path / "job.py", "job.py"), limit_bytes=LARGEST).files) == {
        "job.py",
        *files,
    }


def test_a_long_call_chain_is_ordinary_code(tmp_path: Path) -> None:
    chain = "x" + ".where(1)" * 800
    (tmp_path / "job.py").write_text(f'import os\ny = {chain}("text")\nimport helper')
    (tmp_path / "helper.py").touch()
    files = collect(CodeFile(tmp_path / "job.py", "job.py"), limit_bytes=LARGEST).files
    assert set(files) == {"job.py", "helper.py"}


def test_what_is_named_and_not_taken_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job" / "data").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "far_helper.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    (tmp_path / "job" / "data" / "flights.csv").write_bytes(b"x" * 3000)
    (tmp_path / "job" / "small.yaml").touch()
    (tmp_path / "job" / "job.py").write_text(
        '"""Reads data/flights.csv."""\nimport far_helper, os\n'
        'path = "data/flights.csv"; other = "small.yaml"; no = "data"; url = "s3://data/flights.csv"\n'
        "here = os.path.dirname(__file__)\n"
    )
    spec = JobSpec(
        file="job.py", directory=str(tmp_path / "job"), include=("*.yaml",), parameters={}
    )
    code = code_of(spec)
    assert code is not None
    assert set(code.files) == {"job.py", "small.yaml"}
    far, data, file = code.not_taken(spec)
    assert far == (
        f"not sent with the code: module far_helper, from {tmp_path / 'elsewhere'}: install it on "
        "each host"
    )
    assert data == (
        f"not sent with the code: {tmp_path / 'job' / 'data' / 'flights.csv'} (3 KiB): put a copy at "
        "the same path on each host that runs the job, name data by URL, or send small files beside "
        "the code with --include NAME"
    )
    assert file.startswith("job.py uses __file__")


@pytest.mark.parametrize(
    ("glob", "actual"),
    [("/etc/passwd", "'/etc/passwd'"), ("../*", "'../*'"), ("*.none", "which names no file")],
)
def test_what_cannot_be_included_is_said(glob: str, actual: str, tmp_path: Path) -> None:
    write(tmp_path, {"job.py": ""})
    with pytest.raises(SpecError, match="--include") as wrong:
        collect(CodeFile(tmp_path / "job.py", "job.py"), [glob], limit_bytes=LARGEST)
    assert actual in wrong.value.got


def test_what_python_has_compiled_is_not_taken(tmp_path: Path) -> None:
    write(tmp_path, {"job.py": "", "a.txt": "", "__pycache__/job.cpython-312.pyc": ""})
    code = collect(CodeFile(tmp_path / "job.py", "job.py"), ["**/*"], limit_bytes=LARGEST)
    assert set(code.files) == {"job.py", "a.txt"}


def test_oversized_code_is_refused_naming_large_files(tmp_path: Path) -> None:
    write(tmp_path, {"job.py": ""})
    (tmp_path / "weights.bin").write_bytes(bytes(LARGEST))
    spec = JobSpec(file="job.py", directory=str(tmp_path), include=("*.bin",), parameters={})
    with pytest.raises(SpecError, match=r"the largest is weights.bin with 8 MiB, need at most"):
        code_of(spec)


def test_what_is_too_large_is_not_read(tmp_path: Path) -> None:
    """A folder of data that is named by mistake causes an error, with any amount of memory."""
    write(tmp_path, {"job.py": ""})
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(1 << 40)
    spec = JobSpec(file="job.py", directory=str(tmp_path), include=("*",), parameters={})
    with pytest.raises(
        SpecError, match=r"2 files of 1024 GiB; the largest is data.bin with 1024 GiB"
    ):
        code_of(spec)


# What comes from elsewhere ------------------------------------------------------------------------


def tar(*entries: tuple[tarfile.TarInfo, bytes], **attributes: int) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(
        fileobj=packed, mode="w", format=attributes.get("format", tarfile.GNU_FORMAT)
    ) as archive:
        for entry, content in entries:
            entry.size, entry.mode = len(content), 0o400
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def of_type(kind: bytes, name: str, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry, b""


def with_holes(size: int) -> bytes:
    """An archive of a few kilobytes with a file of which GNU tar says that it is all holes."""
    entry = tarfile.TarInfo("a.py")
    entry.type = tarfile.GNUTYPE_SPARSE
    head = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    for place, number in ((386, size), (398, 0), (483, size)):
        head[place : place + 12] = b"%011o\0" % number
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head).ljust(tarfile.RECORDSIZE, b"\0")


BAD = {
    "upwards": pack({"../evil.py": b""}),
    "within": pack({"a/../../evil.py": b""}),
    "absolute": pack({"/tmp/evil.py": b""}),
    "dot": pack({"./a.py": b""}),
    "doubled": pack({"a//b.py": b""}),
    "control": pack({"a\n.py": b""}),
    "file and folder": pack({"a": b"", "a/b.py": b""}),
    "link": tar(of_type(tarfile.SYMTYPE, "a.py", "/etc/passwd")),
    "hard link": tar(of_type(tarfile.LNKTYPE, "a.py", "/etc/passwd")),
    "device": tar(of_type(tarfile.CHRTYPE, "a.py")),
    "folder": tar(of_type(tarfile.DIRTYPE, "a")),
    "twice": tar((tarfile.TarInfo("a.py"), b"1"), (tarfile.TarInfo("a.py"), b"2")),
    "another format": tar((tarfile.TarInfo("a.py"), b""), format=tarfile.PAX_FORMAT),
    "truncated": pack(FILES)[:700],
    "no archive": b"x" * 5000,
    "empty": b"",
    "too many": pack({f"{k}.py": b"" for k in range(bundles.MOST_FILES + 1)}),
    "too large": bytes(LARGEST + 1),
    "holes": with_holes(64 << 20),
    "compiled": pack({"a.py": b"", "__pycache__/a.cpython-312.pyc": b""}),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_invalid_bundle_is_refused_and_leaves_nothing(case: str, cache: Path) -> None:
    with pytest.raises(EnvironmentFault, match="bundle"):
        unpack(BAD[case], digest_of(BAD[case]))
    assert not cache.exists()


def test_holes_of_an_archive_take_no_memory() -> None:
    """All users that may submit a job may send one: the scheduler reads it."""
    bundle = with_holes(64 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(EnvironmentFault, match="is not a regular file"):
            read_bundle(bundle, digest_of(bundle))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_altered_bytes_from_disk_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "_content_of", lambda _: {})
    with pytest.raises(EnvironmentFault, match="does not have what was written to it"):
        unpack(pack(FILES), digest_of(pack(FILES)))


def test_a_bundle_is_what_its_digest_says() -> None:
    assert read_bundle(pack(FILES), digest_of(pack(FILES))) == FILES
    with pytest.raises(EnvironmentFault, match="damaged on its way"):
        read_bundle(pack(FILES), digest_of(b""))


@pytest.mark.parametrize(
    ("module", "file"),
    [
        ("flights.train", "flights/train.py"),
        ("flights", "flights/__main__.py"),
        ("alone", "alone.py"),
        ("twice", "twice.py"),
        ("space.inner", "space/inner.py"),
    ],
)
def test_a_module_runs_from_its_copy(module: str, file: str, tmp_path: Path) -> None:
    says = (
        "import os, sys, tools\nprint(__file__, __name__, tools.KEPT, os.getcwd(), *sys.argv[1:])"
    )
    modules = {
        "flights/__init__.py": "",
        "flights/train.py": f"from .model import net\n{says}",
        "flights/model.py": "net = 1",
        "flights/__main__.py": says,
        "space/inner.py": says,
        "alone.py": says,
        "twice.py": says,
        "twice/__main__.py": "raise SystemExit('a folder that is no package')",
        "tools.py": "KEPT = 'kept'",
    }
    write(tmp_path, modules)
    spec = JobSpec(
        command=(sys.executable, "-u", "-m", module, "3"), parameters={}, directory=str(tmp_path)
    )
    bundle = packed_for(spec, warn=print)
    spec = replace(spec, bundle=digest_of(bundle))
    write(tmp_path, dict.fromkeys(modules, "raise SystemExit('the code was changed')"))
    copy = unpack(bundle, spec.bundle)
    spec = in_folder(spec, copy)
    printed = subprocess.run(
        spec.command, env=os.environ | spec.env, cwd=tmp_path, check=True, stdout=subprocess.PIPE
    ).stdout.decode()
    assert printed.split() == [str(copy / file), "__main__", "kept", str(tmp_path), "3"]


def test_module_of_an_older_python_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"pack/__init__.py": "", "pack/train.py": "", "loop.py": ""})
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = -P ] && echo "Unknown option: -P" >&2 && exit 2\n')
    old.chmod(0o700)
    module = JobSpec(
        command=(str(old), "-u", "-m", "pack.train"), parameters={}, directory=str(tmp_path)
    )
    with pytest.raises(SpecError, match=r"which does not know -P, need Python 3\.11"):
        packed_for(module, warn=print)
    script = replace(module, command=(str(old), str(tmp_path / "loop.py")))
    assert packed_for(script, warn=print)
    old.write_text("#!/bin/sh\nexit 2\n")
    assert packed_for(module, warn=print), "something else is wrong with it, which it says itself"


def test_scripts_with_safe_path_run_from_a_copy(tmp_path: Path) -> None:
    write(tmp_path, {"loop.py": "print('kept')"})
    for words in (("-P", "loop.py"), ("-P", "-m", "runpy", "loop.py")):
        spec = JobSpec(command=("python", *words), parameters={}, directory=str(tmp_path))
        bundle = packed_for(spec, warn=print)
        spec = replace(spec, bundle=digest_of(bundle))
        copy = unpack(bundle, spec.bundle)
        assert code_folder(in_folder(spec, copy)) == copy


# Where it is unpacked -----------------------------------------------------------------------------


def test_it_is_read_only_and_there_once(cache: Path) -> None:
    folder = unpack(pack(FILES), digest_of(pack(FILES)))
    assert folder == cache / digest_of(pack(FILES))
    assert unpack(pack(FILES), digest_of(pack(FILES))) == folder
    assert os.listdir(cache) == [folder.name]
    for path in (folder, folder / "deep", folder / "deep" / "er"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o500
    assert stat.S_IMODE((folder / "job.py").stat().st_mode) == 0o400
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def _change(path: Path) -> None:
    path.chmod(0o600)
    path.write_text("evil = 1")


def _link(path: Path) -> None:
    path.parent.chmod(0o700)
    path.unlink()
    path.symlink_to("/etc/passwd")


def _add(path: Path) -> None:
    path.parent.chmod(0o700)
    path.with_name("torch.py").touch()


@pytest.mark.parametrize("harm", [_change, _link, _add])
def test_what_was_changed_there_is_not_run(harm: Callable[[Path], None]) -> None:
    folder = unpack(pack(FILES), digest_of(pack(FILES)))
    harm(folder / "job.py")
    assert unpack(pack(FILES), digest_of(pack(FILES))) == folder
    assert (folder / "job.py").read_bytes() == FILES["job.py"]
    assert sorted(os.listdir(folder)) == ["deep", "job.py"]


def test_a_place_of_another_account_is_not_used(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.mkdir(parents=True)
    cache.symlink_to("/tmp")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = unpack(pack(FILES), digest_of(pack(FILES)))
    assert folder.parent == tmp_path / f"brim-code-{os.geteuid()}"


def test_processes_that_unpack_at_once_have_it_whole(cache: Path, tmp_path: Path) -> None:
    files = {f"m{k}.py": b"x" * 1000 for k in range(200)}
    (tmp_path / "bundle").write_bytes(pack(files))
    code = (
        "import sys; from pathlib import Path; from brim.storage.bundles import *\n"
        "b = Path(sys.argv[1]).read_bytes(); f = unpack(b, digest_of(b))\n"
        "assert len(list(f.iterdir())) == 200 and all(p.stat().st_size == 1000 for p in f.iterdir())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "bundle")]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(300) for process in processes] == [0, 0, 0, 0]
    assert os.listdir(cache) == [digest_of(pack(files))]


def test_code_that_nobody_uses_goes_after_a_while(cache: Path) -> None:
    def unpacked_by_another(files: dict[str, bytes]) -> Path:
        folder = unpack(pack(files), digest_of(pack(files)))
        os.close(bundles._folder_descriptors.pop())
        return folder

    old, fresh = unpacked_by_another({"a.py": b"1"}), unpacked_by_another({"a.py": b"2"})
    used = unpack(pack({"a.py": b"3"}), digest_of(pack({"a.py": b"3"})))
    for folder in (old, used):
        os.utime(folder, (0, 0))
    unpack(pack(FILES), digest_of(pack(FILES)))
    assert (old.exists(), fresh.exists(), used.exists()) == (False, True, True)


@pytest.mark.parametrize(
    ("code", "sent", "is_named"),
    [
        ("import os\nkey = os.environ['MY_KEY']", {}, True),
        ("from os import environ, getenv\nkey = getenv('MY_KEY', '')", {}, True),
        ("import helper", {}, True),
        ("import os\nkey = os.environ['MY_KEY']", {"MY_KEY": "k"}, False),
        ("import os\nkey = os.environ['OTHER']", {}, False),
        ("import os\nos.environ.setdefault('MY_KEY', '1')\nkey = os.environ['MY_KEY']", {}, False),
        ("import os\nhome = os.environ['HOME'] + os.environ['BRIM_TOKEN_FILE']", {}, False),
    ],
)
def test_variable_left_behind_is_named(
    code: str, sent: dict[str, str], is_named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MY_KEY", "HOME", "BRIM_TOKEN_FILE"):
        monkeypatch.setenv(name, "k")
    write(tmp_path, {"job.py": code, "helper.py": "import os\n'MY_KEY' in os.environ"})
    sentences: list[str] = []
    spec = JobSpec(file="job.py", directory=str(tmp_path), parameters={}, env=sent)
    packed_for(spec, warn=sentences.append)
    file = "helper.py" if "helper" in code else "job.py"
    sentence = f"not sent with the job: the variable MY_KEY, which {file} reads: --env MY_KEY"
    assert sentences == [sentence] * is_named
