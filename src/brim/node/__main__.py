"""`python -m brim.node FOLDER`: the agent of one node of a cluster; schedulers come and go."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from brim.host.control_groups import groups_of, make_group
from brim.host.process import die_with_parent
from brim.node.loop import NodeAgent
from brim.wire.nodes import listen_on_node

_TO_END = (
    10.0  # seconds for what an earlier life left: one in an uninterruptible sleep ends when it can
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m brim.node", description=__doc__)
    parser.add_argument("folder", type=Path, help="has its lock, its socket and its log")
    parser.add_argument(
        "--lock",
        type=int,
        required=True,
        help="descriptor of the lock that it holds while it lives",
    )
    parser.add_argument("--parent", type=int, help="process with which it ends; none: with none")
    arguments = parser.parse_args()
    if arguments.parent is not None:
        die_with_parent(arguments.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(arguments.lock, False)
    for group in groups_of(
        arguments.folder
    ):  # by an earlier life: once we can be called, its devices count as free
        group.end(patience=_TO_END)
    NodeAgent(listen_on_node(arguments.folder), make_group(arguments.folder)).run()


if __name__ == "__main__":
    main()
