"""`python -m brim.loggers RUN_DIR LOGGER`.

Tells one logger of one run, until its standard input ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import traceback
from functools import partial
from pathlib import Path

from brim.errors import BrimError, UserCodeError
from brim.host.clock import local_time, wall
from brim.host.process import be_called, die_with_parent, print_by_line, readable
from brim.loggers import trainjob
from brim.loggers.follower import Follower
from brim.loggers.named import make_logger

INTERVAL = 0.5  # seconds between two looks: a logger has no need to be quicker


def follow(run_dir: Path, name: str) -> None:
    """Send the logger a run's records, old and new, until our standard input closes."""
    follower = Follower(run_dir, name, partial(make_logger, name))
    is_over = False
    while not is_over:
        is_over = _left_alone(INTERVAL)
        follower.poll()
    follower.close()


def _left_alone(patience: float) -> bool:
    """Wait at most so many seconds; return whether our standard input was closed."""
    return bool(readable([sys.stdin.fileno()], patience)) and not os.read(sys.stdin.fileno(), 1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m brim.loggers", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("logger", help="tensorboard, mlflow, wandb, FILE.py:NAME, or trainjob")
    parser.add_argument("--parent", type=int, required=True, help="process whose end is ours")
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    be_called("brim-logger")
    print_by_line()
    with contextlib.suppress(OSError):
        os.nice(10)  # training comes first
    try:
        if arguments.logger == trainjob.NAME:
            trainjob.report(arguments.run_dir, _left_alone)
        else:
            follow(arguments.run_dir, arguments.logger)
    except UserCodeError as error:
        sys.exit(error.trace)
    except BrimError as error:
        sys.exit(str(error))
    except Exception:  # noqa: BLE001 - whatever a logger raises
        stamp = f"{local_time(wall()):%H:%M:%S}"
        sys.exit(f"{stamp} {arguments.logger}: {traceback.format_exc()}".rstrip())


if __name__ == "__main__":
    main()
