"""The job of a run in its directory.

The spec, written for each start, and the code: a bundle of the user's file and what it imports from
its own folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import replace
from pathlib import Path

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.job import JobSpec
from brim.domain.quantities import counted, format_bytes
from brim.errors import EnvironmentFault, SpecError
from brim.host.untrusted import read_regular
from brim.storage.bundles import LARGEST, MOST_FILES, digest_of, pack, read_bundle, unpack
from brim.storage.files import write_whole
from brim.user_code.own_code import (
    Code,
    CodeFile,
    collect,
    in_folder,
    module_files,
    module_in,
    source_of,
)

JOB_FILE = "job.json"
_LARGEST_JOB = 4 << 20  # bytes
CODE = "code.tar"  # as it was when the run began
CHANGED_CODE = "code-changed.tar"  # as it was when the run went on last, where it had changed


def write_job(run_dir: Path, spec: JobSpec) -> None:
    """Raises EnvironmentFault where the directory cannot be written."""
    try:
        write_whole(
            run_dir / JOB_FILE, msgspec.json.format(msgspec.json.encode(spec)), is_sole_writer=True
        )
    except OSError as error:
        raise EnvironmentFault(f"cannot write to {run_dir}: {error}") from error


def read_job(run_dir: Path) -> JobSpec:
    """Read the spec that `write_job` wrote.

    Raises:
        EnvironmentFault: it is missing, damaged, or of another version.
        SpecError: it asks for what cannot be.
    """
    path = run_dir / JOB_FILE
    try:
        content = read_regular(path, at_most=_LARGEST_JOB)
        return msgspec.json.decode(content, type=JobSpec)
    except OSError as error:
        raise EnvironmentFault(f"cannot read {path}: {error.strerror}") from error
    except UNDECODABLE as error:
        raise EnvironmentFault(f"{path} is damaged: {error}") from error


def code_of(spec: JobSpec) -> Code | None:
    """Return the code of a job as it is now; None where it names no Python file or module.

    Raises:
        SpecError: it is too large to be sent, or cannot be read.
    """
    source = source_of(spec)
    if source is None:
        return None
    try:
        code = collect(source, spec.include, limit_bytes=LARGEST)
    except OSError as error:
        raise SpecError(
            error.filename or source.name,
            got=f"a file that cannot be read ({error.strerror})",
            need="code that can be sent with the job",
            hint="check its permissions",
        ) from error
    _check_size(code)
    return code


def _check_size(code: Code) -> None:
    size = sum(size + 1024 for size in code.sizes.values())
    if size <= LARGEST - (1 << 15) and len(code.sizes) <= MOST_FILES:
        return
    largest = max(code.sizes, key=lambda name: code.sizes[name])
    raise SpecError(
        f"the code of {code.source.name}",
        got=f"{counted(len(code.sizes), 'file')} of {format_bytes(size)}; the largest is {largest} with "
        f"{format_bytes(code.sizes[largest])}",
        need=f"at most {format_bytes(LARGEST)} and {MOST_FILES:,} files, with what it imports from "
        f"{code.source.folder} and what --include names",
        hint="name data by URL, and install large packages on each host",
    )


def keep_code(run_dir: Path, spec: JobSpec) -> None:
    """Keep the code of a run as it is when it starts, and as it was when it began.

    Code that cannot be kept, since it is too large or cannot be read, is run all the same.

    Raises:
        EnvironmentFault: the code of a bundle is not there, or cannot be written.
    """
    code_file = run_dir / CODE
    try:
        if spec.bundle:
            if not code_file.exists() and spec.inference is not None:
                write_whole(
                    code_file, bundle_of(Path(spec.inference.run), spec.bundle), is_sole_writer=True
                )
            return
        # The process that runs the file says what is wrong with it.
        with contextlib.suppress(SpecError):
            if (code := code_of(spec)) is None:
                return
            bundle, changed = pack(code.files), run_dir / CHANGED_CODE
            if not code_file.exists():
                write_whole(code_file, bundle, is_sole_writer=True)
            elif read_bundle_file(code_file) != bundle:
                write_whole(changed, bundle, is_sole_writer=True)
            else:
                changed.unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"cannot write to {run_dir}: {error}") from error


def write_bundle(run_dir: Path, bundle: bytes) -> None:
    """Put the code of a job into its directory, where its processes look for it. Raises OSError."""
    if not (run_dir / CODE).exists():
        write_whole(run_dir / CODE, bundle, is_sole_writer=True)


def kept_bundle(run_dir: Path) -> bytes:
    """Return the code that a run was started with last; empty where none is kept."""
    for name in (CHANGED_CODE, CODE):
        with contextlib.suppress(OSError):
            return read_bundle_file(run_dir / name)
    return b""


def read_bundle_file(path: Path) -> bytes:
    """Return the bundle in a file of a run's directory, where anything may be in its place.

    Raises OSError.
    """
    return read_regular(path, at_most=LARGEST)


def bundle_of(run_dir: Path, digest: str) -> bytes:
    """Return the bundle of this digest that a run keeps.

    Raises:
        EnvironmentFault: it keeps none.
    """
    for name in (CODE, CHANGED_CODE):
        with contextlib.suppress(OSError):
            bundle = read_bundle_file(run_dir / name)
            if digest_of(bundle) == digest:
                return bundle
    raise EnvironmentFault(
        f"{run_dir} does not have the code of its job any more: {CODE} is gone, or was changed"
    )


def with_code_in_place(run_dir: Path, spec: JobSpec) -> JobSpec:
    """Return the spec with its code where this process can run it: a bundle is unpacked.

    Raises:
        EnvironmentFault: the bundle is not there, or cannot be unpacked.
    """
    if not spec.bundle:
        return spec
    return in_folder(spec, unpack(bundle_of(run_dir, spec.bundle), spec.bundle))


def from_kept_code(run_dir: Path, spec: JobSpec) -> JobSpec | None:
    """Return the spec of a run whose file or module is gone, to be run from the code that it keeps.

    None where it keeps none, or the file is there.
    """
    source, bundle = source_of(spec), kept_bundle(run_dir)
    if spec.bundle or not bundle:
        return None
    digest, is_gone = digest_of(bundle), source is not None and not source.path.exists()
    if not spec.file and not module_in(spec.command, Path(spec.directory)):
        with contextlib.suppress(EnvironmentFault):  # a damaged copy is none
            files = read_bundle(bundle, digest)
            is_gone |= any(name in files for name in module_files(spec.command))
    return replace(spec, bundle=digest) if is_gone else None


def change_of_source(run_dir: Path, spec: JobSpec) -> str:
    """Return a warning where the code of a run has changed since the run was started.

    Empty where it has not, and where the kept code runs.
    """
    source = source_of(spec)
    if spec.bundle or source is None:
        return ""
    try:
        bundle = read_bundle_file(run_dir / CODE)
        kept_bundle = read_bundle(bundle, digest_of(bundle))
    except (OSError, EnvironmentFault):
        return ""
    changed = [name for name, content in kept_bundle.items() if _has_changed(source, name, content)]
    if not changed:
        return ""
    names = ", ".join(str(source.place(name)) for name in sorted(changed))
    current, used = (
        ("has", "is used as it is") if len(changed) == 1 else ("have", "are used as they are")
    )
    return (
        f"{names} {current} changed since this run began, and {used} now: {run_dir / CODE} has what it "
        "began with"
    )


def _has_changed(source: CodeFile, name: str, kept_digest: bytes) -> bool:
    try:
        path = Path(os.path.realpath(source.place(name)))
        return read_regular(path, at_most=len(kept_digest)) != kept_digest
    except OSError as error:  # it has more than was kept, or is gone
        return error.errno == errno.EFBIG or name != source.name
