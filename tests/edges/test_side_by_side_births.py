"""A template has several workers under way at a time, and each becomes its agent's child."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.cold

# The process that comes between the template and its first worker waits for the second worker.
STORY = """
import errno, json, os, socket
from brim.host.process import adopt_orphans
from brim.wire.frames import FrameBuffer, frame
from brim.worker import template

adopt_orphans()
own_end, far_end = socket.socketpair()
gate, opened = os.pipe()
born, tell = os.pipe()
fork, forks = os.fork, 0

def counting_fork():
    global forks
    forks += 1
    if os.getpid() != pid_of_template and forks == 2 and not refuses:
        os.read(gate, 1)
    if os.getpid() != pid_of_template and refuses:
        raise BlockingIOError(errno.EAGAIN, "no more processes")
    return fork()

class Process(template.TemplateProcess):
    def _become_worker(self, birth):
        os.write(opened, b"+")
        while os.getppid() != agent:
            pass
        os.write(tell, f"{birth.worker} {os.getpid()} {birth.place}\\n".encode())
        os._exit(7)

refuses = REFUSES
agent, pid_of_template = os.getpid(), 0
child = fork()
if not child:
    pid_of_template = os.getpid()
    os.fork = counting_fork
    own_end.close()
    process = Process(far_end, None, "", "", secret=b"", begin_again=None)
    while process._serve():
        pass
    os._exit(0)
far_end.close()
null = os.open(os.devnull, os.O_RDWR)
frames, answers = FrameBuffer(), []
for place, worker in enumerate(("w1", "w2")):
    socket.send_fds(own_end, [frame(f"{worker} {place}".encode())], [null] * 6)
while len(answers) < 2 and (data := own_end.recv(4096)):
    answers += [template._codec.decode(one) for one in frames.feed(data)]
forked = [answer for answer in answers if answer.pid]
ends = {answer.worker: (answer.pid, os.waitpid(answer.pid, 0)[1]) for answer in forked}
problems = {answer.worker: answer.problem for answer in answers if not answer.pid}
own_end.close()
os.waitpid(child, 0)
os.close(tell)
said = os.read(born, 4096).decode().splitlines()
print(json.dumps({"ends": ends, "said": sorted(said), "problems": problems}))
"""


def play(*, refuses: bool) -> dict[str, Any]:
    story = STORY.replace("REFUSES", str(refuses))
    command = [sys.executable, "-c", story]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_second_worker_waits_for_no_first() -> None:
    found = play(refuses=False)
    pids = {worker: pid for worker, (pid, _) in found["ends"].items()}
    assert found["said"] == [f"w1 {pids['w1']} 0", f"w2 {pids['w2']} 1"]
    assert {status >> 8 for _, status in found["ends"].values()} == {7}


def test_template_tells_whom_it_cannot_fork() -> None:
    found = play(refuses=True)
    assert found["problems"].keys() == {"w1", "w2"}
    assert all("no more processes or threads" in words for words in found["problems"].values())
    assert found["ends"] == {}
