"""Installs wheels of brim in a fresh environment and trains there: what a release shows of each version.

    python .ci/installed.py dist/brim-0.1.0-py3-none-any.whl --python 3.12 --torch 2.8.0

The README's model is trained by three workers, of which one is killed and one joins, and by one
worker; both have to end with the same digest. Prints a row of the table of installations. Exit
status 1 if anything of it fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEADLINE = 1800.0  # seconds of one command: an installation downloads gigabytes
FAULTS = "kill rank 1 at step 10; add 1 at step 20"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("wheel", type=Path, help="of brim")
    parser.add_argument(
        "--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}", help="version"
    )
    parser.add_argument("--torch", default="", help="version; without it, the newest")
    parser.add_argument(
        "--torch-index", default="", metavar="URL", help="of an index of torch's wheels"
    )
    chosen = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tiny.py").write_text(model(), encoding="utf-8")
        try:
            print(check(folder, chosen))
        except (subprocess.SubprocessError, AssertionError) as error:
            print(
                f"Python {chosen.python}, torch {chosen.torch or 'newest'}: {error}",
                file=sys.stderr,
            )
            return 1
    return 0


def model() -> str:
    """The README's own model."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert found is not None
    return found[1]


def check(folder: Path, chosen: argparse.Namespace) -> str:
    """Install, train twice, and return the row."""
    started = time.monotonic()
    python = folder / "env" / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    run([*uv, "venv", "--quiet", "--python", chosen.python, str(python.parents[1])], folder)
    install = [*uv, "pip", "install", "--quiet", "--python", str(python)]
    if chosen.torch or chosen.torch_index:
        index = ["--index-url", chosen.torch_index] if chosen.torch_index else []
        run([*install, *index, f"torch=={chosen.torch}" if chosen.torch else "torch"], folder)
    pinned = [f"torch=={chosen.torch}"] if chosen.torch else []
    run([*install, f"{chosen.wheel.resolve()}[train]", *pinned], folder)
    brim = str(python.with_name("brim"))
    train = [brim, "train", "tiny.py", "--json"]
    faulty = json.loads(run([*train, "--workers", "3", "--faults", FAULTS], folder))
    alone = json.loads(run([*train, "--workers", "1"], folder))
    assert faulty["weights_sha256"] == alone["weights_sha256"], "the digests differ"
    show = "import platform, torch; print(platform.python_version(), '|', torch.__version__)"
    versions = run([str(python), "-c", show], folder).strip()
    seconds = time.monotonic() - started
    return f"| {versions} | `{alone['weights_sha256'][:12]}` | {seconds:.0f} s |"


def run(command: list[str], folder: Path) -> str:
    """Return what a command prints; it sees no other environment's packages."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
