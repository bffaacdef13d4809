"""The site of all documents is built without a warning, asks no host for anything, and is searched."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]
# What a browser loads by itself; a link that a reader follows may lead anywhere.
LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=\"((?:https?:)?//[^\"]+)\""
)
FROM_STYLE = re.compile(r"(?:@import\s+|url\()[\"']?((?:https?:)?//[^\"')]+)")


@pytest.fixture(scope="module")
def site() -> Path:
    shutil.rmtree(ROOT / "build" / "site", ignore_errors=True)
    done = subprocess.run(
        ["make", "-C", str(ROOT), "docs"], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return ROOT / "build" / "site"


def test_pages_load_nothing_from_outside(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 150
    loaded = [(page.name, found) for page in pages for found in LOADED.findall(page.read_text())]
    loaded += [
        (sheet.name, found)
        for sheet in site.rglob("*.css")
        for found in FROM_STYLE.findall(sheet.read_text())
    ]
    assert loaded == []


def test_links_to_sources_show_them(site: Path) -> None:
    page = (site / "docs" / "design" / "exactness.html").read_text()
    (address,) = set(re.findall(r'href="([^"#]*reduction\.py\.html)"', page))
    shown = (site / "docs" / "design" / address).resolve().read_text()
    assert "class" in shown
    assert "source:" not in page


@pytest.mark.browser
def test_search_works_from_files(site: Path) -> None:
    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api")
    asked: list[str] = []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{(site / 'search.html').as_uri()}?q=quarantined")
        page.wait_for_selector("#search-results li a")
        titles = page.locator("#search-results li a").all_inner_texts()
        browser.close()
    assert titles
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
