"""`python -m brim.node FOLDER`: the agent of one node of a cluster; schedulers come and go."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from brim.node.loop import NodeAgent
from brim.wire.nodes import listen_on_node

__all__ = ["main"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m brim.node", description=__doc__)
    parser.add_argument("folder", type=Path, help="has its lock, its socket and its log")
    parser.add_argument(
        "--lock", type=int, required=True, help="descriptor of the lock that it holds while it lives"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(arguments.lock, False)
    NodeAgent(listen_on_node(arguments.folder)).run()


if __name__ == "__main__":
    main()
