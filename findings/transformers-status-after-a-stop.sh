#!/usr/bin/env bash
# transformers 5.24.0: KubeflowCallback reports 100 % where training stops early, and a wrong end after a resume.
#
# The callback posts to the server that KUBEFLOW_TRAINER_SERVER_URL names. Its on_train_end posts progressPercentage 100 and
# estimatedRemainingSeconds 0 without a look at the step: so does a Trainer that was stopped at step 50 of 200, by
# enable_jit_checkpoint or by a callback that sets should_training_stop. The remaining time is the time since this process
# began, divided by all steps, those of earlier processes among them: one that went on from step 100 and has made 10 steps
# in 10 s reports 8 s for the 90 that are left. The numbers of steps among the metrics are right in both cases, but the
# report of the end repeats the metrics of the last log, without them. Seen on 2026-11-29 with Python 3.11. Nothing of torch
# is needed: the callback is called as a Trainer calls it, against a plain https server on loopback.
#
# Needs: python3.11 with venv, openssl. Fails if transformers behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.24.0
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 \
    -keyout "$folder/key.pem" -out "$folder/ca.pem" 2>/dev/null
echo token >"$folder/token"
cat >"$folder/status.py" <<'PY'
import http.server
import json
import os
import ssl
import sys
import threading
import time

folder = sys.argv[1]
posts = []


class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["trainerStatus"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Server)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(f"{folder}/ca.pem", f"{folder}/key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["KUBEFLOW_TRAINER_SERVER_URL"] = f"https://127.0.0.1:{server.server_port}"
os.environ["KUBEFLOW_TRAINER_SERVER_CA_CERT"] = f"{folder}/ca.pem"
os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"] = f"{folder}/token"

import transformers
from transformers import TrainerControl, TrainerState
from transformers.integrations.integration_utils import KubeflowCallback

stopped, state, control = KubeflowCallback(), TrainerState(max_steps=200), TrainerControl()
stopped.on_train_begin(None, state, control)
state.global_step, state.epoch = 50, 0.5
stopped.on_log(None, state, control, logs={"loss": 0.7})
control.should_training_stop = True
stopped.on_train_end(None, state, control)

resumed, state = KubeflowCallback(), TrainerState(max_steps=200, global_step=100)
resumed.on_train_begin(None, state, TrainerControl())
resumed._start_time, resumed._last_update_time = time.time() - 10.0, 0.0  # ten seconds have passed
state.global_step, state.epoch = 110, 1.1
resumed.on_step_end(None, state, TrainerControl())

end, going_on = posts[1], posts[3]
print(transformers.__version__, "stopped at 50 of 200:", end["progressPercentage"], "%,", end["metrics"])
print("10 steps in 10 s, 90 to go:", going_on["estimatedRemainingSeconds"], "s,", going_on["metrics"])
assert transformers.__version__ == "5.24.0"
assert end["progressPercentage"] == 100 and end["estimatedRemainingSeconds"] == 0
assert [metric["name"] for metric in end["metrics"]] == ["loss"]
assert going_on["estimatedRemainingSeconds"] in (7, 8), going_on
assert {"name": "current_step", "value": "110"} in going_on["metrics"]
PY
"$folder/venv/bin/python" "$folder/status.py" "$folder" 2>/dev/null
