"""The supply of brim: every file pinned by its hash, every licence listed, known vulnerabilities
named.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PIN = re.compile(r"^([\w.-]+)==(\S+)(?: ; (.*?))? \\$", re.MULTILINE)
LINUX = {"sys_platform": "linux", "platform_machine": "x86_64", "python_full_version": "3.11.9"}
NOT_AT_RUNTIME = ("dev", "all")


def pins() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, version, _ in PIN.findall(LOCK):
        found.setdefault(canonicalize_name(name), set()).add(version)
    return found


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def runtime() -> list[Requirement]:
    metadata = project()["project"]
    extras = metadata["optional-dependencies"]
    chosen = [extras[name] for name in extras if name not in NOT_AT_RUNTIME]
    return [Requirement(text) for group in (metadata["dependencies"], *chosen) for text in group]


def test_every_file_has_a_hash() -> None:
    pinned = re.split(r"\n(?=[\w.-]+==)", LOCK)[1:]
    assert len(pinned) == len(PIN.findall(LOCK)) > 100
    assert [entry.splitlines()[0] for entry in pinned if "--hash=sha256:" not in entry] == []


def test_the_lock_names_no_host() -> None:
    assert not re.search(r"://|^-", LOCK, re.MULTILINE)


@pytest.mark.parametrize("requirement", runtime(), ids=str)
def test_every_runtime_dependency_is_locked(requirement: Requirement) -> None:
    versions = pins().get(canonicalize_name(requirement.name), set())
    assert versions, "make lock"
    assert all(requirement.specifier.contains(version, prereleases=True) for version in versions)


def test_what_builds_brim_is_locked() -> None:
    configuration = project()
    assert configuration["dependency-groups"]["build"] == configuration["build-system"]["requires"]
    assert all(
        Requirement(requirement).name in pins()
        for requirement in configuration["build-system"]["requires"]
    )


def test_the_lock_has_the_tested_versions() -> None:
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    expected = {
        canonicalize_name(name): version
        for name, version in re.findall(r"^(\S+)==(\S+)$", constraints, re.M)
    }
    locked = pins()
    assert {
        name for name, version in expected.items() if name in locked and locked[name] != {version}
    } == set()


def test_every_licence_is_listed() -> None:
    with (ROOT / "licences.csv").open(newline="", encoding="utf-8") as file:
        listed = {canonicalize_name(row["Name"]): row["License"] for row in csv.DictReader(file)}
    installed = {
        canonicalize_name(name)
        for name, _, marker in PIN.findall(LOCK)
        if not marker or Marker(marker).evaluate(LINUX)
    }
    assert installed - listed.keys() == set(), "make licences"
    assert "nvidia-nccl-cu13" in listed
    unknown = {name for name, licence in listed.items() if licence in ("", "UNKNOWN")}
    # One contains no files, one has its licence as a file: see docs/design/dependencies.md
    assert unknown <= {"cuda-toolkit", "namex"}


# The audit ----------------------------------------------------------------------------------------

PINNED = (
    "left-pad==1.3.0 \\\n    --hash=sha256:0\nright_pad==2.0 ; sys_platform == 'linux' \\\n   "
    " --hash=sha256:1\n"
)


def advisory(*events: dict[str, str], name: str = "left-pad", **fields: Any) -> dict[str, Any]:
    package = {"name": name, "ecosystem": fields.pop("ecosystem", "PyPI")}
    versions = fields.pop("versions", [])
    ranges = [{"type": "ECOSYSTEM", "events": list(events)}] if events else []
    affected = [{"package": package, "ranges": ranges, "versions": versions}]
    vulnerability = {
        "id": "X-1",
        "modified": "2026-11-01T00:00:00Z",
        "aliases": ["CVE-1"],
        "summary": "it runs code",
    }
    return {**vulnerability, "affected": affected, **fields}


FROM_START = {"introduced": "0"}
FOUND = {
    "no fix": advisory(FROM_START),
    "before the fix": advisory(FROM_START, {"fixed": "1.3.1"}),
    "in the second stretch": advisory(
        FROM_START, {"fixed": "1.0"}, {"introduced": "1.2"}, {"fixed": "1.10"}
    ),
    "the last one": advisory(FROM_START, {"last_affected": "1.3.0"}),
    "by version": advisory(versions=["1.2.9", "1.3.0"]),
    "another spelling": advisory(FROM_START, name="Left.Pad"),
    "what cannot be compared": advisory({"introduced": "r17"}),
}
NOT_FOUND = {
    "fixed": advisory(FROM_START, {"fixed": "1.3"}),
    "not yet": advisory({"introduced": "1.3.1"}),
    "after the last one": advisory(FROM_START, {"last_affected": "1.2.9"}),
    "another version": advisory(versions=["1.3.0.post1"]),
    "another package": advisory(FROM_START, name="left"),
    "another ecosystem": advisory(FROM_START, ecosystem="npm"),
    "withdrawn": advisory(FROM_START, withdrawn="2026-11-02T00:00:00Z"),
    "about nothing": {"id": "X-2", "modified": "2026-11-01T00:00:00Z"},
}


def audit(folder: Path, lock_path: Path) -> subprocess.CompletedProcess[str]:
    (folder / "lock").write_text(PINNED)
    command = [sys.executable, str(ROOT / ".ci" / "audit.py"), str(lock_path), str(folder / "lock")]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("advisory_id", FOUND)
def test_a_known_vulnerability_is_named(tmp_path: Path, advisory_id: str) -> None:
    (tmp_path / "one.json").write_text(json.dumps(FOUND[advisory_id]))
    done = audit(tmp_path, tmp_path / "one.json")
    assert done.stdout.startswith("left-pad 1.3.0: it runs code (X-1, CVE-1; ")
    assert done.returncode == 1, done.stderr


def test_others_are_not(tmp_path: Path) -> None:
    for name, content in NOT_FOUND.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    done = audit(tmp_path, tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert f"2 pins, {len(NOT_FOUND)} advisories up to 2026-11-01" in done.stderr


def test_an_archive_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("X-1.json", json.dumps(FOUND["before the fix"]))
        archive.writestr("X-2.json", json.dumps(advisory(FROM_START, name="right-pad", id="X-2")))
    done = audit(tmp_path, tmp_path / "all.zip")
    assert done.stdout.splitlines() == [
        "left-pad 1.3.0: it runs code (X-1, CVE-1; fixed in 1.3.1)",
        "right-pad 2.0: it runs code (X-2, CVE-1; no fix is known)",
    ]


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"id": 1}', b"PK\x03\x04torn"])
def test_silence_is_not_taken_for_health(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "one.json").write_bytes(content)
    done = audit(tmp_path, tmp_path / "one.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "one.json" in done.stderr
