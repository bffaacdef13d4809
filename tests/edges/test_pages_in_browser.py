"""The pages in a real browser: they fit a telephone, their text can be read, and values are read
off by all means.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brim.report.course import render_course
from brim.report.run import render_report
from brim.scheduler.story import cluster_course
from brim.telemetry.history import read_history
from edges.test_scheduler_dies import House, Points
from pages import assert_loads_nothing
from recorded_run import eventful

pytestmark = pytest.mark.browser
NAMES = ("run", "cluster", "simulation")
TELEPHONE, DESK = 390, 1280


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if program is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    eventful(folder / "run")
    (folder / "run.html").write_text(render_report(read_history(folder / "run")))
    (folder / "house").mkdir()
    house = House(folder / "house", Points())
    house.scheduler._note("up", "4 devices, policy brim")
    house.tell_the_story()
    history = cluster_course(house.database, subject="here", now=None)
    (folder / "cluster.html").write_text(render_course(history))
    words = ["simulate", "--policy", "brim,edf", "--out", str(folder / "out")]
    subprocess.run(
        [sys.executable, "-m", "brim.cli", *words], check=True, capture_output=True, timeout=120
    )
    shutil.copy(folder / "out" / "index.html", folder / "simulation.html")
    return folder


@pytest.fixture
def opened(browser: Any, written: Path) -> Iterator[Any]:
    """Opens a page by its name; any error in it, or load by it, fails the test."""
    contexts = []

    def look(name: str, width: int, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(error))
        page.on("request", lambda request: urls.append(request.url))
        page.goto((written / f"{name}.html").as_uri())
        return page

    wrong: list[Any] = []
    urls: list[str] = []
    yield look
    for context in contexts:
        context.close()
    assert not wrong
    assert not [url for url in urls if not url.startswith("file:")]


def tip(page: Any) -> str:
    return re.sub(r"\s+", " ", page.locator(".tip").inner_text())


def charts(page: Any) -> Any:
    return page.locator("svg[data-readings]:visible")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_loads_nothing(written: Path, name: str) -> None:
    assert_loads_nothing((written / f"{name}.html").read_text())


@pytest.mark.parametrize("width", [TELEPHONE, DESK])
@pytest.mark.parametrize("name", NAMES)
def test_pages_fit_and_charts_are_readable(opened: Any, name: str, width: int) -> None:
    page = opened(name, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = page.evaluate(
        """[...document.querySelectorAll("figure svg text")].filter((text) => text.getClientRects().length)
           .map((text) => [parseFloat(getComputedStyle(text).fontSize), text.getScreenCTM()])
           .map(([size, { a, b }]) => size * Math.hypot(a, b))"""
    )
    assert sizes
    assert min(sizes) >= 7.5  # px: numbers within bars; labels have 9 and more
    assert sorted(sizes)[len(sizes) // 2] >= 9


@pytest.mark.parametrize("name", NAMES)
def test_pages_follow_the_readers_dark_mode(opened: Any, name: str) -> None:
    def brightness(scheme: str) -> list[float]:
        page = opened(name, DESK, color_scheme=scheme)
        found = page.evaluate(
            """[getComputedStyle(document.body).backgroundColor,
                getComputedStyle(document.querySelector("figure svg text")).fill]"""
        )
        return [sum(map(int, re.findall(r"\d+", colour)[:3])) / 765 for colour in found]

    page, text = brightness("dark")
    assert page < 0.2
    assert text > 0.5
    page, text = brightness("light")
    assert page > 0.9
    assert text < 0.5


@pytest.mark.parametrize("width", [TELEPHONE, DESK])
def test_a_value_is_read_off_under_the_pointer(opened: Any, width: int) -> None:
    page = opened("run", width)
    assert not page.locator(".tip").is_visible()
    chart = charts(page).first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    chart.hover(position={"x": box["width"] * 0.98, "y": box["height"] * 0.9})
    assert re.search(r"^5\.\d+ s loss 0\.\d+ samples per second [\d,]+ workers 5$", tip(page))
    tip_box = page.locator(".tip").bounding_box()
    assert tip_box["x"] >= 0
    assert tip_box["x"] + tip_box["width"] <= width
    page.mouse.move(1, 1)
    assert not page.locator(".tip").is_visible()


def test_values_are_read_off_by_keys(opened: Any) -> None:
    page = opened("run", TELEPHONE)
    last = charts(page).last  # the metrics by epoch
    last.focus()
    page.keyboard.press("ArrowRight")
    assert tip(page) == "1 auc 0.755 log_loss 0.46"
    page.keyboard.press("ArrowRight")
    assert tip(page) == "2 auc 0.7625 log_loss 0.45"
    page.keyboard.press("End")
    assert tip(page).startswith("3 auc 0.7662")
    page.keyboard.press("Home")
    assert tip(page).startswith("1 auc")
    page.keyboard.press("Escape")
    assert not page.locator(".tip").is_visible()


def test_values_are_read_off_by_touch(opened: Any) -> None:
    page = opened("simulation", TELEPHONE, has_touch=True, is_mobile=True)
    chart = charts(page).first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert re.search(r"^\d+(\.\d+)? h brim \d+ edf \d+$", tip(page))
    page.locator("h1").tap()
    assert not page.locator(".tip").is_visible()


def test_jobs_tell_of_themselves_by_pointer_and_keys(opened: Any) -> None:
    page = opened("cluster", DESK)
    page.locator("svg:visible [data-tip]").first.hover()
    assert re.match(r"a-1: ", tip(page))
    chart = page.locator("svg:visible:has([data-tip])")
    chart.focus()
    page.keyboard.press("End")
    tip_text = tip(page)
    page.keyboard.press("ArrowLeft")
    assert tip(page) != tip_text
    assert re.match(r"[a-d]-\d: ", tip(page))


def test_devices_tell_who_has_them(opened: Any) -> None:
    page = opened("cluster", TELEPHONE)
    chart = charts(page).first
    chart.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert re.match(r"[\d.]+ seconds .*tenant ads \d tenant web \d$", tip(page))
