"""A script's first imports are made ahead of it, as it would make them, and no others are."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from pathlib import Path

import pytest

from brim.train.entry import imports
from brim.train.entry.imports import be_script, leading_imports
from brim.user_code.python_program import PythonProgram


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(imports, "_is_script", False)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("import wave\nfrom chunk_of import a", ["import wave", "from chunk_of import a"]),
        (
            '"""Doc."""\nimport wave\n"more"\nimport cgitb as c',
            ["import wave", "import cgitb as c"],
        ),
        ("import wave\nprint(1)\nimport cgitb", ["import wave"]),
        ("import os\nos.environ['A'] = '1'\nimport wave", ["import os"]),
        ("try:\n    import wave\nexcept ImportError:\n    pass", []),
        ("import wave, alone\nimport cgitb", []),
        ("import wave\nimport alone\nimport cgitb", ["import wave"]),
        ("from begins import x\nimport cgitb", ["import wave"]),
        ("from package.part import x\nimport cgitb", ["import cgi"]),
        ("from folder import x\nimport wave", []),
        ("from turns import x", ["import wave"]),
        ("from . import x\nimport wave", []),
    ],
)
def test_imports_stop_at_dependent_code(script: str, expected: list[str], tmp_path: Path) -> None:
    modules_beside = {
        "loop.py": script,
        "alone.py": "x = 1\nimport wave",
        "begins.py": "import wave\nx = 1\nimport cgitb",
        "package/__init__.py": "import cgi",
        "package/part.py": "import wave",
        "folder/x.py": "",
        "turns.py": "import wave\nimport about",
        "about.py": "import turns\nimport cgitb",
    }
    for name, text in modules_beside.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    be_script(PythonProgram(str(tmp_path / "loop.py"), (), tmp_path), 0)
    assert [
        ast.unparse(leading_import) for leading_import in leading_imports(tmp_path / "loop.py")
    ] == expected


AHEAD = """
import os, random, sys
from pathlib import Path
from brim.user_code.python_program import PythonProgram
from brim.train.entry.imports import import_ahead
from brim.errors import SpecError
import brim

path = Path(sys.argv[1])
import_ahead(PythonProgram(str(path), ("--lr", "1"), path.parent), 7)
brim.join  # may be called again
read, write = os.pipe()
if not os.fork():
    os.write(write, f"{random.random()} {sorted({'good', 'bad', 'late', 'joins'} & set(sys.modules))}".encode())
    os._exit(0)
print(os.read(read, 99).decode())
"""


@pytest.mark.parametrize(
    ("bad", "expected_modules"),
    [
        ("raise RuntimeError('no')", ["good"]),
        ("import sys; sys.exit(3)", ["good"]),
        ("import brim; brim.join(None, None)", ["good"]),
        ("import sys; assert sys.argv[1:] == ['--lr', '1']", ["bad", "good", "late"]),
    ],
)
def test_template_errors_are_left_to_workers(
    bad: str, expected_modules: list[str], tmp_path: Path
) -> None:
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "good.py").write_text("import random; random.seed(5)")
    (installed / "bad.py").write_text(bad)
    (installed / "late.py").write_text("")
    (tmp_path / "loop.py").write_text("import good\nimport bad\nimport late\n")
    done = subprocess.run(
        [sys.executable, "-c", AHEAD, str(tmp_path / "loop.py")],
        capture_output=True, text=True, timeout=300, env={"PYTHONPATH": str(installed), "PATH": ""}, check=False,
    )  # fmt: skip
    assert done.stdout == f"{random.Random(5).random()} {expected_modules}\n", done.stderr
