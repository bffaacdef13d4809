"""Python programs that a command runs, which a process that has Python already can run as well."""

from __future__ import annotations

import os
import runpy
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

from brim.domain.job import JobSpec
from brim.user_code.own_code import code_folder, module_in, word_after

_IMPLIED = ("-u", "-P")  # options of Python that change nothing here


@dataclass(frozen=True, slots=True)
class PythonProgram:
    """The program of `python script.py arguments…`, or of `python -m module arguments…`.

    Args:
        path: of the script, as the command has it, or of the module's file.
        arguments: those behind the script or the module.
        folder: that its own modules are imported from.
        module: by its full name; empty for a script.
    """

    path: str
    arguments: tuple[str, ...]
    folder: Path
    module: str = ""

    def run(self) -> None:
        """Run it in this process, as `__main__`."""
        if self.module:
            runpy.run_module(self.module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(self.path, run_name="__main__")


def program_of(spec: JobSpec) -> PythonProgram | None:
    """Return the Python program of a job's command.

    Of modules that is one of the job's own code, and none that is installed.

    >>> program = program_of(JobSpec(command=("python3", "-u", "loop.py", "3"), parameters={}))
    >>> program.path, program.arguments
    ('loop.py', ('3',))
    >>> program_of(JobSpec(command=("python", "loop.py", "-u"), parameters={})).arguments
    ('-u',)
    >>> for command in (("python", "-O", "loop.py"), ("bash", "run.sh"), ("python", "-m", "torch")):
    ...     assert program_of(JobSpec(command=command, parameters={})) is None
    """
    if not spec.command or not Path(spec.command[0]).name.startswith("python"):
        return None
    words = [*dropwhile(_IMPLIED.__contains__, spec.command[1:])]
    if not words:
        return None
    if words[0].endswith(".py"):
        folder = Path(os.path.realpath(words[0])).parent
        return PythonProgram(words[0], tuple(words[1:]), folder)
    folder, module = code_folder(spec), word_after("-m", ("python", *words[:2]))
    file = module_in(("python", *words[:2]), folder)
    if not file:
        return None
    return PythonProgram(str(folder / file), tuple(words[2:]), folder, module)
