"""DIN and DCN-V2 whose tables servers hold, large ones and those of hashed ids: one digest, whoever
dies.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pyarrow.csv as arrow_csv
import pytest

from brim.serving.bundle import open_bundle
from brim_lab.driver import Driver
from e2e.running import FILES, PACED, Run, check_ledger, started, train, until
from tiers import LONG

pytestmark = pytest.mark.e2e
ROWS = 3000
WHOLE = ("--set", "table=whole", "--set", "optimizer=adagrad")
KEYED = ("--set", "table=keyed", "--set", "optimizer=adam", "--set", f"buckets={2**40}")


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clicks on films that the history has."""
    chance = np.random.default_rng(0)
    rows = ["user,film,history,hour,click"]
    for user, film in chance.integers(0, (300, 200), (ROWS, 2)):
        history = chance.integers(0, 200, chance.integers(0, 6)) // 10 * 10 + film % 10
        click = int(chance.random() < (0.8 if film // 10 * 10 + film % 10 in history else 0.3))
        rows.append(f"{user},{film},{'|'.join(map(str, history))},{chance.normal():.3f},{click}")
    path = tmp_path_factory.mktemp("clicks") / "clicks.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def rounds_after_kills(run: Run) -> int:
    return sum("signal 9" in event["cause"] for event in run.events("round"))


@pytest.mark.parametrize(
    ("model", "table"),
    [
        pytest.param("din", KEYED, id="din keyed"),
        pytest.param("dcn_v2", WHOLE, id="dcn_v2 whole"),
        pytest.param("din", WHOLE, marks=LONG, id="din whole"),
        pytest.param("dcn_v2", KEYED, marks=LONG, id="dcn_v2 keyed"),
    ],
)
def test_one_digest_with_a_server_and_deaths(
    model: str, table: tuple[str, ...], clicks: Path, tmp_path: Path
) -> None:
    options = ("--set", f"path={clicks}", "--set", f"model={model}", *table)
    job = (str(FILES / "click_models.py"), *options, "--epochs", "2", "--global-batch-size", "128")
    alone = train(tmp_path / "alone", *job, "--workers", "1")
    options = (*PACED, "--workers", "2", "--ps", "1")
    with started(tmp_path / "served", "train", *job, *options) as run:
        for kills, rank in enumerate((2, 0)):  # the server, and a worker
            run.wait_for_step(2 * kills + 2)
            os.kill(run.pid(run.members()[rank]), signal.SIGKILL)
            until(lambda: rounds_after_kills(run) > kills, "another round", run)  # noqa: B023
        run.hurry()
        served = run.finish()
    assert served["weights_sha256"] == alone["weights_sha256"]
    check_ledger(tmp_path / "served")
    assert rounds_after_kills(run) == 2, run.events("round")

    done, bundle = tmp_path / "predicted.csv", tmp_path / "bundle"
    Driver().call(
        "predict", str(tmp_path / "served"), "--input", str(clicks), "--output", str(done)
    )
    predicted = arrow_csv.read_csv(done).column("probability").to_pylist()
    Driver().call("export", str(tmp_path / "served"), "--output", str(bundle), "--format", "bundle")
    bundled = open_bundle(bundle)
    cells = [line.split(",")[:4] for line in clicks.read_text().splitlines()[1:]]
    names = ("user", "film", "history", "hour")
    columns = dict(zip(names, map(list, zip(*cells, strict=True)), strict=True))
    answers = bundled.predict(*bundled.reader.read(columns))["probability"]
    np.testing.assert_allclose(answers.numpy(), predicted, rtol=1e-4)
