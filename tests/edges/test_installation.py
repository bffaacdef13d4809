"""What to type to install brim: true of a clone and of a wheel, and never its bare name."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from brim.host.installation import command_for, command_for_laboratory

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"pip install (?:\\\n|[^`\n])+(?:\n[^`\n]+(?=`))?")
NAME = re.compile(r"(?<![\w./-])['\"]?brim(-lab)?(\[|['\"`\s=<>~]|$)")


def installed_by(monkeypatch: pytest.MonkeyPatch, record: object) -> None:
    """Have brim's distribution say that it was installed by a record as PEP 610 has it."""

    class _Distribution:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return json.dumps(record) if record else None

    monkeypatch.setattr("importlib.metadata.distribution", lambda _: _Distribution())


def test_hint_names_the_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clone = tmp_path / "my clone"
    (clone / "lab").mkdir(parents=True)
    installed_by(monkeypatch, {"url": clone.as_uri(), "dir_info": {"editable": True}})
    assert command_for("keras") == f"pip install -e '{clone}[keras]'"
    assert command_for_laboratory() == f"pip install -e '{clone}' -e '{clone}/lab'"
    installed_by(monkeypatch, {"url": clone.as_uri(), "dir_info": {}})
    assert command_for("train", "s3") == f"pip install '{clone}[train,s3]'"


def test_hint_names_the_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "brim-0.1.0-py3-none-any.whl"
    wheel.touch()
    installed_by(monkeypatch, {"url": wheel.as_uri(), "archive_info": {}})
    assert command_for("onnx") == f"pip install '{wheel}[onnx]'"
    assert command_for_laboratory() == "pip install -e . -e lab in a clone of brim"
    wheel.unlink()
    assert command_for("onnx") == "pip install -e '.[onnx]' in a clone of brim"


@pytest.mark.parametrize("record", [None, {"url": "https://models/brim.git", "vcs_info": {}}])
def test_other_origins_need_a_clone(monkeypatch: pytest.MonkeyPatch, record: object) -> None:
    installed_by(monkeypatch, record)
    assert command_for("s3") == "pip install -e '.[s3]' in a clone of brim"


def test_an_uninstalled_brim_needs_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", missing)
    assert command_for("s3") == "pip install -e '.[s3]' in a clone of brim"


def texts() -> dict[str, str]:
    """Each text file of the repository that a reader may follow, by its path."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    readable = [
        path
        for path in listed
        if path.endswith((".md", ".py", ".sh", ".yml", ".yaml", ".toml", "file", ".sbatch"))
        and path != str(Path(__file__).relative_to(ROOT))
    ]
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in readable}


def commands() -> list[tuple[str, str]]:
    return [(path, found[0]) for path, text in texts().items() for found in COMMAND.finditer(text)]


def test_no_command_installs_the_bare_name() -> None:
    found = [
        f"{path}: {command}"
        for path, command in commands()
        if NAME.search(command.partition("  #")[0].partition(" in a clone")[0])
    ]
    assert not found, "\n".join(found)


def test_extras_of_commands_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = [
        (path, extra)
        for path, command in commands()
        for listed in re.findall(r"\.\[([\w,-]+)\]", command)
        for extra in listed.split(",")
    ]
    assert len(named) > 10
    assert [place for place in named if place[1] not in extras] == []


@pytest.mark.parametrize(
    ("command", "bare"),
    [
        ("pip install brim", True),
        ("pip install 'brim[train]'", True),
        ("uv pip install --quiet brim-lab", True),
        ("pip install brim==0.1.0", True),
        ("pip install -e '.[train]'", False),
        ("pip install '/opt/brim[train]'", False),
        ("pip install dist/brim-0.1.0-py3-none-any.whl", False),
    ],
)
def test_a_bare_name_is_found(command: str, bare: bool) -> None:
    assert bool(NAME.search(command)) is bare


def test_a_release_tries_what_it_builds() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "run: python .ci/installed.py dist/brim-*.whl" in workflow
    script = runpy.run_path(str(ROOT / ".ci" / "installed.py"))
    assert "def optimizer(model):" in script["model"]()
    for action in re.findall(r"uses: (\S+)", workflow):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action), "pinned by its commit"
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = next(
        need for need in settings["optional-dependencies"]["train"] if need.startswith("torch>=")
    )
    assert f'torch: "{oldest.removeprefix("torch>=").partition(",")[0]}.0"' in workflow


def shown_commands() -> list[tuple[Path, list[str]]]:
    """The installations that documents show by a path, each with the folder to type it in."""
    found = []
    for path, text in texts().items():
        if path.endswith(".md") and not path.startswith("changes/"):
            for line in re.findall(r"^pip install .+$", text, re.MULTILINE):
                words = shlex.split(line, comments=True)[2:]
                if "ADDRESS" not in words:
                    folder = ROOT / path if path.startswith("examples/") else ROOT / "README.md"
                    found.append((folder.parent, words))
    return found


def resolve(words: list[str], folder: Path) -> None:
    """Resolve an installation as pip would, and install nothing."""
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--dry-run",
        "--python",
        sys.executable,
    ]
    done = subprocess.run(
        [*command, *words], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize(("folder", "words"), shown_commands())
def test_a_shown_installation_can_be_resolved(folder: Path, words: list[str]) -> None:
    if words[0].startswith("dist/"):
        subprocess.run(["make", "-C", str(ROOT), "wheels"], check=True, timeout=300)
    resolve(words, folder)


@pytest.mark.long
def test_the_hint_of_this_brim_can_be_resolved() -> None:
    command = command_for("s3", "tensorboard")
    resolve(shlex.split(command.removesuffix(" in a clone of brim"))[2:], ROOT)
