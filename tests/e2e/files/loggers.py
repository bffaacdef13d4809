"""Loggers of one's own, good and bad, for the tests."""

import json
import signal
from pathlib import Path


class Lines:
    """Keeps JSON lines in the run's directory, and takes back by writing the file again."""

    def begin(self, run):
        self.path = Path(run.directory, f"{type(self).__name__.lower()}.jsonl")
        self.lines = []

    def rewind(self, step):
        old = self.path.read_text().splitlines() if self.path.exists() else []
        lines = [line for line in old if json.loads(line)[0] <= step]
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(line + "\n" for line in lines))
        fresh.replace(self.path)

    def log(self, entry):
        self.lines.append(json.dumps([entry.step, dict(entry.values)]) + "\n")

    def flush(self):
        with self.path.open("a") as file:
            file.write("".join(self.lines))
        self.lines = []

    def end(self, exit):
        self.path.with_suffix(".end").write_text(exit)


class Hangs(Lines):
    """Never comes back from its first value."""

    def log(self, entry):
        signal.pause()


class Raises(Lines):
    """Has an exception for every value."""

    def log(self, entry):
        raise RuntimeError(f"no room for step {entry.step}")


not_a_logger = 3


def incomplete():
    return object()
