"""Laws that the contracts of imports in pyproject.toml cannot say: which calls belong where."""

from __future__ import annotations

import ast
import functools
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "brim"
LABORATORY = (
    "chaos/",
    "experiments/",
)  # it is outside of what it tries, and goes about as users do

_TODAY = {"now", "today", "utcnow"}
_CONNECTS = {
    "create_connection",
    "create_server",
    "open_connection",
    "open_unix_connection",
    "start_server",
    "start_unix_server",
}
_PUTS_ON_DISK = {"fsync", "fdatasync", "replace", "rename", "renames"}
_WRITES = {"write_text", "write_bytes"}
_TO_WRITE = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC"}


def reads_a_clock(call: ast.Call) -> bool:
    """Whether this is `datetime.now()` or like it: `time` itself is forbidden to import."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=name):
            return name in _TODAY
        case ast.Attribute(value=ast.Attribute(attr="datetime" | "date"), attr=name):
            return name in _TODAY
    return False


def opens_a_connection(call: ast.Call) -> bool:
    """Whether this listens or connects.

    A pair between a process and its child, and a socket that was inherited, are no connections to
    strangers.
    """
    keywords = {keyword.arg for keyword in call.keywords}
    match call.func:
        case ast.Attribute(value=ast.Name(id="socket"), attr="socket"):
            return "fileno" not in keywords
        case ast.Attribute(attr=name):
            return name in _CONNECTS and "sock" not in keywords
    return False


def writes_a_file(call: ast.Call) -> bool:
    """Whether this writes a file, or puts a written one on disk or in its place."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in _PUTS_ON_DISK:
            return True
        case ast.Attribute(value=ast.Name(id="os"), attr="open"):
            return any(
                isinstance(node, ast.Attribute) and node.attr in _TO_WRITE
                for argument in call.args
                for node in ast.walk(argument)
            )
        case ast.Attribute(attr="replace" | "rename"):  # of a path: texts and values take more
            return len(call.args) == 1 and not call.keywords
        case ast.Attribute(attr=name) if name in _WRITES:
            return True
        case ast.Attribute(attr="open" | "fdopen") | ast.Name(id="open" | "open_regular"):
            arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
            texts = [argument.value for argument in arguments if isinstance(argument, ast.Constant)]
            return any(isinstance(text, str) and _is_mode_to_write(text) for text in texts) or any(
                isinstance(node, ast.Attribute) and node.attr in _TO_WRITE
                for argument in arguments
                for node in ast.walk(argument)
            )
    return False


def may_lose_a_cancellation(call: ast.Call) -> bool:
    """Whether this is `asyncio.wait_for`: where the result comes at once with it, it is not raised.

    That holds up to Python 3.11; `asyncio.timeout` raises it.
    """
    match call.func:
        case ast.Attribute(value=ast.Name(id="asyncio"), attr="wait_for"):
            return True
    return False


def _is_mode_to_write(text: str) -> bool:
    return len(text) <= 3 and set(text) <= set("rwaxbt+") and bool(set(text) & set("wax+"))


@dataclass(frozen=True)
class Law:
    """A kind of call that belongs at home; elsewhere each module that makes it has a reason."""

    breaks: Callable[[ast.Call], bool]
    home: tuple[str, ...]
    exceptions: dict[str, str]


LAWS = {
    "clocks": Law(reads_a_clock, ("host/clock.py",), {}),
    "connections": Law(
        opens_a_connection,
        ("wire/",),
        {"host/gpus.py": "a name that says whose a GPU is: nobody listens there, nor calls"},
    ),
    "cancellations": Law(may_lose_a_cancellation, (), {}),
    "writes": Law(
        writes_a_file,
        ("storage/",),
        {
            "backends/local.py": "a log in a folder of another account must be a regular file",
            "backends/warm_agents.py": "a pipe, by whose end an agent knows that its command is gone",
            "cli/shared/usage.py": "the null device, in the place of output without room",
            "cli/token.py": "a file for the token must be there before the token is given",
            "host/control_groups.py": "files of the kernel",
            "loggers/tensorboard.py": "tensorboard reads its file while it grows",
            "host/process.py": "files of the kernel",
            "runs/directories.py": "the link to the latest run, which no file can be",
            "scheduler/audit.py": "a line is one write: nobody replays it",
            "serving/contents.py": "a private copy, checked before anybody reads it",
            "telemetry/record_files.py": "record files: each line has its place, the journal has it too",
            "telemetry/log_limit.py": "cuts logs of processes that have them open",
            "train/inference/predictions.py": "rows of any number are streamed by pyarrow into a draft",
        },
    ),
}


@functools.cache
def calls() -> Mapping[str, list[ast.Call]]:
    """The calls of each module of brim."""
    return {
        path.relative_to(SOURCE).as_posix(): [
            node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call)
        ]
        for path in sorted(SOURCE.rglob("*.py"))
    }


@pytest.fixture(scope="module", autouse=True)
def _calls_for_this_file_alone() -> Iterator[None]:
    """Let go of what each collection of garbage would go through."""
    yield
    calls.cache_clear()


@pytest.mark.parametrize("law", LAWS)
def test_a_law_holds_but_for_its_named_exceptions(law: str) -> None:
    found = {
        name: [call.lineno for call in made if LAWS[law].breaks(call)]
        for name, made in calls().items()
        if not name.startswith(LAWS[law].home)
    }
    broken = {name: lines for name, lines in found.items() if lines}
    named = LAWS[law].exceptions
    assert {name: lines for name, lines in broken.items() if name not in named} == {}
    assert named.keys() <= broken.keys(), "an exception that nobody needs any more"


@pytest.mark.parametrize(
    ("law", "call"),
    [
        ("clocks", "datetime.now()"),
        ("clocks", "datetime.date.today()"),
        ("connections", "socket.socket(socket.AF_INET, socket.SOCK_STREAM)"),
        ("connections", "asyncio.start_server(serve, host, 0)"),
        ("cancellations", "asyncio.wait_for(queue.get(), 1.0)"),
        ("writes", "path.open('w')"),
        ("writes", "open(path, mode='ab')"),
        ("writes", "path.write_text(text)"),
        ("writes", "draft.replace(path)"),
        ("writes", "os.fsync(file.fileno())"),
        ("writes", "os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)"),
    ],
)
def test_a_law_sees_who_breaks_it(law: str, call: str) -> None:
    found = ast.parse(call, mode="eval").body
    assert isinstance(found, ast.Call)
    assert LAWS[law].breaks(found)


@pytest.mark.parametrize(
    ("law", "call"),
    [
        ("clocks", "local_time(wall())"),
        ("connections", "socket.socket(fileno=link)"),
        ("connections", "loop.create_connection(make, sock=ours)"),
        ("cancellations", "asyncio.wait([task], timeout=1.0)"),
        ("writes", "path.open('rb')"),
        ("writes", "text.replace('a', 'b')"),
        ("writes", "structs.replace(manifest, files=files)"),
    ],
)
def test_a_law_lets_others_pass(law: str, call: str) -> None:
    found = ast.parse(call, mode="eval").body
    assert isinstance(found, ast.Call)
    assert not LAWS[law].breaks(found)


def test_modules_are_started_without_the_folder() -> None:
    """Only `run_module` writes such commands: in any folder there may be an `http.py`."""
    found = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "-m" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.List | ast.Tuple)
        and any(isinstance(elt, ast.Constant) and elt.value == "-m" for elt in node.elts)
    ]
    assert found == ["host/process.py"]


def test_every_package_has_an_exhaustive_contract() -> None:
    settings = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())
    with_contract = {
        package
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract.get("exhaustive")
        for package in contract["containers"]
    }
    packages = {
        ".".join(init.parent.relative_to(SOURCE.parent).parts)
        for init in SOURCE.rglob("__init__.py")
    }
    assert packages <= with_contract
