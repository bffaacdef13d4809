"""The programs of Kubernetes, built once from Go modules and kept outside the checkout.

Their folder is named after the version and the recipe: `go/`, whose `go.sum` files pin every source
by its hash. A program is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from brim.errors import EnvironmentFault
from brim.host.clock import monotonic
from brim.storage.files import write_whole

VERSION = "v1.37.1"
VARIABLE = "BRIM_TEST_KUBERNETES"  # names a folder in place of that in the cache of this user
STAGES = "kwok.yaml"  # what fake nodes and their pods do

_RECIPE = Path(__file__).with_name("go")
_STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
_LAST_LINES = 15  # of a build that fails
_POLITE = ("nice", "-n", "5")

Tell = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Binary:
    """A program.

    Args:
        module: the folder in `go/` of the module that it is built in.
        package: of its `main`.
    """

    module: str
    package: str


_KUBERNETES = "k8s.io/kubernetes/cmd"
# In the order in which they are built: tests that need no nodes can begin after the second.
BINARIES = {
    "etcd": Binary("kubernetes", "./etcd"),
    "kube-apiserver": Binary("kubernetes", f"{_KUBERNETES}/kube-apiserver"),
    "kubectl": Binary("kubernetes", f"{_KUBERNETES}/kubectl"),
    "kube-scheduler": Binary("kubernetes", f"{_KUBERNETES}/kube-scheduler"),
    "kube-controller-manager": Binary("kubernetes", f"{_KUBERNETES}/kube-controller-manager"),
    "kwok": Binary("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    "kubelet": Binary("kubernetes", f"{_KUBERNETES}/kubelet"),
    "kube-proxy": Binary("kubernetes", f"{_KUBERNETES}/kube-proxy"),
    "coredns": Binary("coredns", "."),
    "pause": Binary("kubernetes", "./pause"),
}


def home() -> Path:
    """The folder of all that is kept: programs, and clusters that are up."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache).absolute() / "brim" / "kubernetes"


@functools.cache
def _recipe() -> str:
    digest = hashlib.sha256()
    for path in sorted(_RECIPE.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(_RECIPE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:8]


def folder() -> Path:
    """The folder of the programs of this version and recipe."""
    return home() / f"{VERSION}-{_recipe()}"


def missing(names: Iterable[str]) -> list[str]:
    """Return those of these programs that are not built yet."""
    return [name for name in names if not (folder() / name).is_file()]


def binary(name: str) -> Path:
    """The path of a program.

    Raises:
        EnvironmentFault: it is not built yet.
    """
    path = folder() / name
    if not path.is_file():
        raise EnvironmentFault(
            f"{name} of Kubernetes {VERSION} is not in {path.parent}\n"
            f"  hint: python -m brim_lab.kubernetes build {name}"
        )
    return path


def build(names: Iterable[str] = BINARIES, tell: Tell = print) -> None:
    """Build those of these programs that are missing.

    One process builds at a time; others wait, and find what it has built.

    Raises:
        EnvironmentFault: there is no Go, a source cannot be had, or the disk is full.
    """
    names_wished = list(names)
    if not missing(names_wished):
        return
    if shutil.which("go") is None:
        raise EnvironmentFault(
            "go is not on PATH, and Kubernetes is built with it\n"
            "  hint: install Go 1.26 or later, or set BRIM_TEST_KUBECONFIG to a cluster of your own"
        )
    folder().mkdir(parents=True, exist_ok=True)
    with _locked(tell):
        for name in missing(names_wished):
            started = monotonic()
            _build(name)
            size_mb = (folder() / name).stat().st_size / 1e6
            tell(f"built {name}: {monotonic() - started:.0f} s, {size_mb:.0f} MB")


@contextlib.contextmanager
def _locked(tell: Tell) -> Iterator[None]:
    with (folder() / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"waiting for another process that builds in {folder()}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(name: str) -> None:
    program, draft = BINARIES[name], folder() / f".{name}.draft"
    _go(
        program.module,
        "build",
        "-trimpath",
        "-gcflags=all=-dwarf=false",  # nobody debugs it: a tenth less to do
        f"-ldflags={_flags()}",
        "-o",
        str(draft),
        program.package,
    )
    if name == "kwok":  # whose module has been fetched by now, if it was not there
        write_whole(folder() / STAGES, _stages())
    os.replace(draft, folder() / name)


def _flags() -> str:
    """Leave out symbols, and put in the version, which programs cannot know by themselves."""
    major, minor, _ = VERSION.removeprefix("v").split(".")
    facts = {"gitVersion": VERSION, "gitMajor": major, "gitMinor": minor}
    stamps = (f"-X k8s.io/component-base/version.{key}={value}" for key, value in facts.items())
    return " ".join(("-s -w", *stamps))


def _stages() -> bytes:
    """Return kwok's own stages from its module, as one file."""
    module = Path(_go("kwok", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok").strip())
    files = [
        path
        for stage in _STAGES
        for path in sorted((module / "kustomize" / "stage" / stage).glob("*.yaml"))
        if path.name != "kustomization.yaml"
    ]
    if not files:
        raise EnvironmentFault(f"{module} has none of the stages {', '.join(_STAGES)}")
    return b"---\n".join(path.read_bytes() for path in files)


def _go(module: str, *words: str) -> str:
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly -buildvcs=false",
        "GOWORK": "off",
    }
    done = subprocess.run(
        [*_POLITE, "go", *words],
        cwd=_RECIPE / module,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        last = "\n".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
        raise EnvironmentFault(f"go {' '.join(words)} failed in {_RECIPE / module}:\n{last}")
    return done.stdout
