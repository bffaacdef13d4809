"""Other people's operators, built from their published Go modules, to be run beside brim's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from brim.errors import EnvironmentFault
from brim_lab.kubernetes.binaries import home


@dataclass(frozen=True, slots=True)
class Peer:
    """An operator.

    Args:
        module, version: of its source.
        package: of its `main`, within the source.
    """

    module: str
    version: str
    package: str

    @property
    def folder(self) -> Path:
        """The folder that it is kept in: `source`, with its manifests, and `program`."""
        return home() / "peers" / f"{self.module.rpartition('/')[2]}-{self.version}"


TRAINING_OPERATOR = Peer(
    "github.com/kubeflow/training-operator", "v1.9.4", "./cmd/training-operator.v1"
)
KUEUE = Peer("sigs.k8s.io/kueue", "v0.19.2", "./cmd/kueue")


def build_peer(peer: Peer, tell: Callable[[str], object] = print) -> Path:
    """Build what is missing of a peer, which takes minutes; return its folder.

    Raises:
        EnvironmentFault: there is no Go, or a source cannot be had.
    """
    program, source = peer.folder / "program", peer.folder / "source"
    if not program.exists():
        if shutil.which("go") is None:
            raise EnvironmentFault("go is not on PATH\n  hint: install Go 1.26 or later")
        tell(f"building {peer.module} {peer.version}: this takes minutes")
        peer.folder.mkdir(parents=True, exist_ok=True)
        if not source.exists():
            asked = ("mod", "download", "-json", f"{peer.module}@{peer.version}")
            there = json.loads(_go(peer.folder, *asked))["Dir"]
            partial = peer.folder / "source.partial"
            shutil.rmtree(partial, ignore_errors=True)
            # Modules are kept read-only, and a build writes beside them.
            shutil.copytree(there, partial, copy_function=shutil.copyfile)
            for folder, _, _ in os.walk(partial):
                Path(folder).chmod(0o755)
            partial.rename(source)
        partial = peer.folder / "program.partial"
        _go(source, "build", "-trimpath", "-ldflags=-s -w", "-o", str(partial), peer.package)
        partial.rename(program)
    return peer.folder


def _go(folder: Path, *words: str) -> str:
    variables = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}
    done = subprocess.run(
        ["nice", "-n", "5", "go", *words], cwd=folder, env=variables, capture_output=True, text=True
    )
    if done.returncode != 0:
        last = "\n".join(done.stderr.splitlines()[-15:])
        raise EnvironmentFault(f"go {words[0]} failed in {folder}:\n{last}")
    return done.stdout
