"""A template that is started before its job is known."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from brim.agent.templates import Template, start_template
from brim.storage.job_file import write_job
from brim.wire.frames import FrameBuffer
from brim.wire.messages import Codec, TemplateMessage, TemplateReady
from recorded_run import spec

pytestmark = pytest.mark.cold

DEADLINE = 300.0  # seconds
TELLING = """
import json, os, pathlib, sys

preload = False
told = {"directory": os.getcwd(), "second": sys.path[1], "value": os.environ.get("VALUE")}
pathlib.Path(os.environ["BRIM_RUN_DIR"], "told").write_text(json.dumps(told))
"""


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Template]:
    monkeypatch.setenv("BRIM_TOKEN", "token")
    template = start_template(tmp_path / "run")
    yield template
    template.drop()


def has_torch(pid: int) -> bool:
    return any("libtorch" in memory_map.path for memory_map in psutil.Process(pid).memory_maps())


def first_words(requests: socket.socket) -> TemplateMessage:
    """The first message of a template."""
    codec: Codec[TemplateMessage] = Codec(TemplateMessage)
    frames = FrameBuffer()
    requests.settimeout(DEADLINE)
    while not (messages := frames.feed(requests.recv(4096))):
        pass
    return codec.decode(messages[0])


def begin(template: Template, tmp_path: Path, **job: Any) -> dict[str, str | None]:
    """Give a job to a template; return the findings of the job's file."""
    file, directory = tmp_path / "file.py", tmp_path / "directory"
    file.write_text(TELLING)
    directory.mkdir()
    write_job(tmp_path / "run", spec(file=str(file), directory=str(directory), **job))
    template.begin("127.0.0.1")
    assert first_words(template.requests) == TemplateReady()
    found: dict[str, str | None] = json.loads((tmp_path / "run" / "told").read_text())
    assert found["directory"] == found["second"] == str(directory)
    return found


def test_it_imports_torch_meanwhile(tmp_path: Path, template: Template) -> None:
    deadline = time.monotonic() + DEADLINE
    while not has_torch(template.process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    begin(template, tmp_path)
    assert "--host" not in psutil.Process(template.process.pid).cmdline()


def test_declared_torch_variables_restart_the_template(tmp_path: Path, template: Template) -> None:
    found = begin(template, tmp_path, env={"VALUE": "declared"})
    assert found["value"] == "declared"
    assert "--host" in psutil.Process(template.process.pid).cmdline()


def test_it_ends_where_no_job_comes(template: Template) -> None:
    template.requests.shutdown(socket.SHUT_RDWR)
    assert template.process.wait(DEADLINE) == 0


def test_an_agent_leaving_before_its_master_leaves_nothing(
    tmp_path: Path,
) -> None:
    folder, heart = tmp_path / "temporary", tmp_path / "heart"
    folder.mkdir()
    environment = {**os.environ, "BRIM_TOKEN": "token", "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "brim", "agent", "no-such-host.invalid:9", "--patience", "1m"]
    command += ["--heartbeat-file", str(heart)]
    with subprocess.Popen(command, env=environment) as agent:
        try:
            deadline = time.monotonic() + DEADLINE
            while not heart.exists():  # it looks for its master
                assert time.monotonic() < deadline
                time.sleep(0.05)
            templates = psutil.Process(agent.pid).children()
            assert templates
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(timeout=DEADLINE) == 0
        finally:
            agent.kill()
    assert psutil.wait_procs(templates, timeout=60)[1] == []
    assert list(folder.iterdir()) == []
