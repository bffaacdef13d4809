from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from brim.simulator.engine import Settings, simulate
from brim.domain.cluster import Cluster
from brim.domain.tenancy import Tenant
from brim.user_code.policies import POLICIES
from workloads import random_jobs
for name, policy in POLICIES.items():
    world = Settings(placed=True, record=True, tenants=(Tenant(id="default", guaranteed=8),))
    run = simulate(random_jobs(11, 25, spread=300.0), Cluster.parse("2x8"), policy, settings=world)
    print(name, run.changes, run.verdicts)
"""


def test_the_same_plan_under_two_hash_seeds() -> None:
    tests = Path(__file__).parents[1]
    found = []
    for seed in ("1", "2"):
        path = os.pathsep.join([str(tests), str(tests.parent / "src")])
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True
        )
        found.append(done.stdout)
    assert found[0] == found[1]
    assert found[0].startswith("brim [") or found[0].startswith("brim (")
