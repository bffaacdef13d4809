#!/usr/bin/env bash
# jax 0.10.2: jax.distributed.initialize replaces the process's handler of SIGTERM.
#
# A script that saves at SIGTERM sets a handler first, as scripts do, and then initializes. From then on its handler is not
# called: JAX's preemption service has the signal, notes it for multihost_utils.reached_preemption_sync_point(step), and logs
# "SIGTERM caught". It neither calls the handler that was there nor says that it replaced one, and signal.getsignal still
# returns that handler. The process trains on until it is killed, and its last steps are lost. A handler that is set after
# initialize is called. TensorFlow 2.21.0 does the same in MultiWorkerMirroredStrategy, with a strategy of two processes.
# Seen on 2026-11-29 with Python 3.11, on CPUs, with one process.
#
# Needs: python3.11 with venv, some 400 MB for jax and what it depends on. Fails if jax behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
if command -v uv >/dev/null; then
  uv pip install --quiet --python "$folder/venv/bin/python" jax==0.10.2 jaxlib==0.10.2
else
  "$folder/venv/bin/pip" install --quiet jax==0.10.2 jaxlib==0.10.2
fi
cat >"$folder/handler.py" <<'PY'
import os
import signal
import socket
import time

import jax

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"


def calls_after(order):
    calls.clear()
    order()
    os.kill(os.getpid(), signal.SIGTERM)
    end = time.monotonic() + 3
    while not calls and time.monotonic() < end:
        time.sleep(0.05)
    return len(calls)


calls = []


def listen():
    signal.signal(signal.SIGTERM, lambda *_: calls.append(True))


def initialize():
    jax.distributed.initialize(address, num_processes=1, process_id=0)


before = calls_after(listen)
lost = calls_after(initialize)
kept = signal.getsignal(signal.SIGTERM)
again = calls_after(listen)
print(jax.__version__, "calls of the handler:", before, "then", lost, "set again:", again)
assert jax.__version__ == "0.10.2"
assert (before, lost, again) == (1, 0, 1)
assert callable(kept)
PY
"$folder/venv/bin/python" "$folder/handler.py"
echo "as described"
