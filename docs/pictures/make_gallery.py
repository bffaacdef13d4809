"""Takes the pictures of the gallery from pages that brim writes of real runs and jobs.

    python docs/pictures/make_gallery.py

It trains the demo, shares two devices between two jobs, and simulates the sample trace, which takes
some minutes; then Chromium takes a picture of each page.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from brim.client import Client

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
FLIGHTS = ROOT / "examples" / "01-first-job" / "flights.py"
FAULTS = "kill rank 1 at step 40; add 2 at step 80; term rank 0 at step 120"
DEADLINE = 900  # seconds of one command
WIDTH, HEIGHT, COLOURS = 1080, 1250, 96  # of a picture
PROGRAM = [sys.executable, "-m", "brim.cli"]


def main() -> None:
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        shutil.copy(FLIGHTS, folder)
        environment = {**os.environ, "BRIM_HOME": str(folder / "state")}

        def brim(*words: str) -> str:
            command = [*PROGRAM, *words]
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                timeout=DEADLINE,
                check=True,
            )
            return done.stdout

        brim("train", FLIGHTS.name, "--workers", "4", "--faults", FAULTS, "--run-dir", "demo")
        brim("simulate", "--policy", "brim,elasticflow,edf", "--out", "simulation")
        brim("up")
        try:
            jobs = [
                brim(
                    "submit",
                    FLIGHTS.name,
                    "--workers",
                    "1:2",
                    "--epochs",
                    epochs,
                    "--deadline",
                    "30m",
                ).split()[0]
                for epochs in ("2", "1")
            ]
            for job in jobs:
                Client(folder / "state").wait(job, timeout=DEADLINE)
            brim("report", "--cluster")
        finally:
            brim("down")
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        take(browser, folder / "demo" / "report.html", "run.png")
        take(browser, folder / "state" / "report.html", "cluster.png")
        take(browser, folder / "simulation" / "index.html", "simulation.png")
        browser.close()


def take(browser: Browser, page: Path, picture: str) -> None:
    """Write a picture of the upper part of a page."""
    view = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace(str(page.parents[1]), "~"), encoding="utf-8")
    view.goto(page.as_uri())
    image = Image.open(io.BytesIO(view.screenshot())).convert("RGB")
    image.quantize(COLOURS).save(FOLDER / picture, optimize=True)
    view.close()


if __name__ == "__main__":
    main()
