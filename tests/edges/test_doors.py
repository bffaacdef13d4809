"""Doors that no other test tries: sockets of node agents, the store of torch.distributed, files
that could run code.
"""

from __future__ import annotations

import ast
import os
import pickle
import socket
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import brim
from brim.errors import EnvironmentFault
from brim.storage.checkpoints import Checkpoint, Store
from brim.storage.file_stores import Directory
from brim.train.exchange.distributed import Distributed
from brim.train.state.checkpoint import state_of
from brim.wire.nodes import listen_on_node

SOURCES = Path(brim.__file__).parent
CALL = (
    "import socket, sys; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(sys.argv[1])"
)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_user_cannot_call_a_nodes_agent() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        with listen_on_node(Path(folder)):
            path = Path(folder, "socket")
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            call = ["/usr/bin/env", "python3", "-c", CALL, str(path)]
            assert subprocess.run(call, cwd="/", timeout=300).returncode == 0
            stranger = subprocess.run(
                call, user=65534, cwd="/", capture_output=True, text=True, timeout=60
            )
            assert "PermissionError" in stranger.stderr


def test_torch_store_listens_only_on_the_runs_address() -> None:
    meeting: Any = Distributed.__new__(Distributed)
    meeting._rank, meeting._device = 0, torch.device("cpu")
    words_received: list[bytes] = []

    def share(word: bytes) -> list[bytes]:
        words_received.append(word)
        return [word]

    store = meeting._open_store("127.0.0.1", 1, share)
    port = int(words_received[0].rpartition(b":")[2])
    socket.create_connection(("127.0.0.1", port), timeout=10.0).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=10.0)
    del store


class _Harm:
    """The action of a pickle when it is read."""

    def __init__(self, file: Path) -> None:
        self._file = str(file)

    def __reduce__(self) -> Any:
        return open, (self._file, "w")


def test_a_checkpoint_runs_nothing(tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    store = Store(Directory(tmp_path / "checkpoints"))
    forged = Checkpoint(
        step=3, tree={"model": {"$tensor": 0}}, versions={}, data=pickle.dumps(_Harm(harm))
    )
    store.publish(store.draft(forged, writer="w1"))
    with pytest.raises(EnvironmentFault, match="holds no state"):
        state_of(store.load(3))
    assert not harm.exists()


def test_only_data_of_own_loaders_is_unpickled() -> None:
    found = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if _unpickles(path)}
    # Recipes are files of the run's own directory; torch reads only plain values and tensors of them.
    # Predictions of a Trainer are a worker's own arrays, or another's of the run.
    evaluation = "train/trainer/evaluation.py"
    assert found == {"data/parcels.py", "train/captured/recipe.py", evaluation}
    text = (SOURCES / evaluation).read_text()
    assert text.count(".load(") == text.count("np.load(io.BytesIO(state), allow_pickle=False)") == 1
    recipe = (SOURCES / "train" / "captured" / "recipe.py").read_text()
    assert recipe.count("torch.load(") == recipe.count("torch.load(path, weights_only=True)") == 1


def _unpickles(path: Path) -> bool:
    """Whether a module uses pickle, or the parts of torch and numpy that do."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.Import(names=names) if any(
                name.name in ("pickle", "shelve", "marshal") for name in names
            ):
                return True
            case ast.ImportFrom(module="pickle" | "shelve" | "marshal"):
                return True
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="torch" | "np" | "numpy"), attr="load")
            ):
                return True
    return False
