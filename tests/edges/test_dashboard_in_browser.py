"""The dashboard in a real browser, before a real scheduler and before one that is made up."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from crowded_desk import MARKUP
from e2e.running import DIGITS
from edges.test_scheduler import Served, ask
from tiers import LONG, long_after

pytest.importorskip("nicegui", reason="pip install -e '.[dashboard]'")
api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
VIEWS = {
    "/": "job-1",
    "/jobs": "job-1",
    "/nodes": "node0",
    "/tenants": "ads",
    "/compare?first=job-1": "Choose two jobs.",
    "/compare?first=job-1&second=job-1": "Events of job-1",
    "/submit": "What if?",
    "/jobs/job-1": "Decisions, and why",
}
PICTURE = ROOT / "docs" / "guides" / "dashboard.png"
TELEPHONE, DESK, WALL = 390, 1280, 2560
SOON = 60_000.0  # milliseconds
JOB_FILE = """\
import brim

job = brim.join()
"""


class Page:
    """A browser that has opened a dashboard.

    Attributes:
        page: of playwright.
        wrong: errors of the page, and what it asked of other addresses.
    """

    def __init__(self, browser: Any, url: str, *, width: int = DESK, **options: Any) -> None:
        self.base = url.partition("/enter")[0]
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(SOON)
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(dialog.message))
        self.page.on("request", self._check)
        self.page.goto(url)
        self.page.wait_for_url(f"{self.base}/")

    def _check(self, request: Any) -> None:
        if not re.match(
            rf"(http|ws|data:)(://{re.escape(self.base.partition('://')[2])}/)?", request.url
        ):
            self.wrong.append(request.url)

    def go(self, path: str) -> Any:
        self.page.goto(f"{self.base}{path}")
        self.page.locator("h1").wait_for()
        return self.page

    def row(self, name: str) -> Any:
        return self.page.locator(f'.ag-row[row-id="{name}"]').first


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def running(
    command: list[str],
    folder: Path,
    *,
    ends_itself: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Run a dashboard; yields the address that opens it."""
    with (folder / "dashboard.log").open("w+") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder, env=_environment(variables or {})
        )  # fmt: skip
        try:
            end = time.monotonic() + 300.0
            while not (found := re.search(r"http://\S+", Path(log.name).read_text())):
                assert process.poll() is None, Path(log.name).read_text()
                assert time.monotonic() < end, "no address"
                time.sleep(0.05)
            yield found[0]
        finally:
            if not ends_itself:
                process.terminate()
            assert process.wait(120.0) == int(ends_itself), Path(log.name).read_text()


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONWARNINGS": "default", **variables}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("state"))
    served.client.submit(ask("1:4"))
    yield served
    served.close()


@pytest.fixture(scope="module")
def desk(browser: Any, world: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The dashboard of a real scheduler, whose jobs are fakes."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "loop.py").write_text(JOB_FILE)
    (folder / "job.yaml").write_text("command: [python, loop.py]\nrestart: true\nname: typed\n")
    command = [sys.executable, "-m", "brim", "dashboard", "--no-browser"]
    with running(command, folder, variables={"BRIM_HOME": str(world.folder)}) as url:
        page = Page(browser, url)
        yield page
        page.context.close()
        assert page.wrong == []


@pytest.fixture(scope="module")
def crowd(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The dashboard of a scheduler that is made up, whose users write markup wherever they can."""
    command = [sys.executable, str(ROOT / "tests" / "crowded_desk.py"), "30", "4", "markup"]
    with running(command, tmp_path_factory.mktemp("crowd")) as url:
        page = Page(browser, url)
        yield page
        page.context.close()
        assert page.wrong == []


def seconds_until_shown(desk: Page, world: Served) -> float:
    """Submit a job, see it come without a reload, and cancel it until it is gone."""
    view = world.client.submit(ask("1:2"))
    started = time.monotonic()
    desk.row(view.job).wait_for()
    seconds = time.monotonic() - started
    world.client.cancel(view.job)
    desk.row(view.job).wait_for(state="detached")
    return seconds


def test_new_job_is_shown_without_a_reload(desk: Page, world: Served) -> None:
    desk.go("/jobs")
    desk.row("job-1").wait_for()
    seconds_until_shown(desk, world)


@LONG
def test_new_job_is_shown_within_a_second(desk: Page, world: Served) -> None:
    desk.go("/jobs")
    desk.row("job-1").wait_for()
    assert min(seconds_until_shown(desk, world) for _ in range(5)) < 1.0  # 0.5 s on an idle host


def test_buttons_do_what_they_say(desk: Page, world: Served) -> None:
    job = world.client.submit(ask("1:4")).job
    page = desk.go("/jobs")
    desk.row(job).locator('[col-id="job"]').click()
    page.wait_for_url(f"**/jobs/{job}")
    page.get_by_role("button", name="Suspend…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("writes a checkpoint at its next step").wait_for()
    page.get_by_role("button", name="Leave it").click()
    assert world.client.job(job).wish == "run"
    page.get_by_role("button", name="Suspend…").click()
    page.get_by_role("button", name=f"Suspend {job}").click()
    page.get_by_role("button", name="Resume…").wait_for()
    assert world.client.job(job).wish == "hold"
    page.get_by_role("button", name="Resize…").click()
    page.get_by_label("FEWEST:MOST").fill("2:3")
    page.get_by_role("button", name="What would it do?").click()
    page.get_by_text("It may have 2–3 workers instead of 1–4.").wait_for()
    page.get_by_role("button", name=f"Resize {job}").click()
    page.get_by_text("0 of 2–3").wait_for()
    page.get_by_role("button", name="Cancel job…").click()
    page.get_by_role("button", name=f"Cancel {job}").click()
    page.get_by_text("cancelled").first.wait_for()
    assert world.client.job(job).state == "cancelled"


def test_job_is_submitted_and_cancelled_by_keys_alone(desk: Page, world: Served) -> None:
    page = desk.go("/submit")
    keys = page.keyboard

    def tab_to(name: str, *, most: int = 40) -> None:
        for _ in range(most):
            keys.press("Tab")
            if name in page.evaluate(
                "(e => (e.getAttribute('aria-label') || '') + e.textContent)(document.activeElement)"
            ):
                return
        raise AssertionError(f"no way to {name}")

    tab_to("File")
    keys.type("job")
    page.get_by_role("option", name="job.yaml").wait_for()
    keys.press("ArrowDown")
    keys.press("Enter")
    tab_to("Tenant")
    keys.press("ArrowDown")
    keys.press("ArrowDown")
    keys.press("Enter")
    tab_to("What if?")
    keys.press("Enter")
    page.get_by_text(re.compile("It would (begin|wait)")).wait_for()
    tab_to("Submit")
    keys.press("Enter")
    page.wait_for_url("**/jobs/typed-*")
    job = page.url.rpartition("/")[2]
    page.get_by_role("button", name="Cancel job…").wait_for()
    page = desk.go("/jobs")
    desk.row(job).wait_for()
    for key in ["Tab"] * 30 + ["ArrowDown"] * 30:  # to the headings, and down into the table
        if (key == "Tab") != page.evaluate("document.activeElement.closest('.ag-root') !== null"):
            keys.press(key)
        if job == page.evaluate(
            "document.activeElement.closest('.ag-row')?.getAttribute('row-id') ?? ''"
        ):
            break
    keys.press("Enter")
    page.wait_for_url(f"**/jobs/{job}")
    page.get_by_role("button", name="Cancel job…").wait_for()
    tab_to("Cancel job…")
    keys.press("Enter")
    page.get_by_role("dialog").wait_for()
    tab_to(f"Cancel {job}")
    keys.press("Enter")
    page.get_by_text("cancelled").first.wait_for()
    assert world.client.job(job).state == "cancelled"


def test_two_jobs_are_compared_by_keys(desk: Page, world: Served) -> None:
    other = world.client.submit(ask("1:2")).job
    page = desk.go("/jobs/job-1")
    page.get_by_role("button", name="Compare…").press("Enter")
    page.wait_for_url("**/compare?first=job-1")
    field = page.get_by_label("second job")
    field.focus()
    page.keyboard.press("ArrowDown")
    page.get_by_role("option", name=other, exact=True).wait_for()
    focused = "document.querySelector('.q-manual-focusable--focused')?.innerText"
    for _ in world.client.jobs():
        if page.evaluate(focused) == other:
            break
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/compare?first=job-1&second={other}")
    row = '.ag-row[row-id="Workers"]'
    page.locator(f'{row} [col-id="first"]', has_text="of 1–4").wait_for()
    page.locator(f'{row} [col-id="second"]', has_text="of 1–2").wait_for()
    page.locator('[aria-label="Workers, of both jobs"] path').first.wait_for(state="attached")
    page.get_by_role("heading", name=f"Events of {other}").wait_for()
    world.client.cancel(other)


def test_job_to_compare_is_found_by_typing(crowd: Page) -> None:
    page = crowd.go("/compare")
    page.get_by_label("second job").focus()
    page.keyboard.press("ArrowDown")
    options = page.get_by_role("option")
    options.nth(20).wait_for(state="attached")
    page.keyboard.type("-12")
    options.nth(1).wait_for(state="detached")
    assert [text.endswith("-12") for text in options.all_inner_texts()] == [True]


def test_tenants_have_their_device_hours(crowd: Page) -> None:
    table = crowd.go("/tenants").locator('[aria-label="Device hours, as a table"]')
    table.locator(".ag-row", has_text="1.00").first.wait_for()
    table.locator(".ag-row", has_text="2026-11").first.wait_for()


def test_markup_of_users_is_shown_as_text(crowd: Page) -> None:
    job = f"ranker{MARKUP}-1"
    for path in ("/", "/jobs", "/nodes", "/tenants"):
        page = crowd.go(path)
        page.locator(".ag-row").first.wait_for()
        assert MARKUP in page.locator("body").inner_text()
    page.goto(f"{crowd.base}/jobs")
    page.locator(".ag-row").first.locator('[col-id="job"]').click()
    page.get_by_text(f"w1  a line {MARKUP}").wait_for()
    page.get_by_role("button", name="Stacks").click()
    page.get_by_text(f"line 3, in loss{MARKUP}").wait_for()
    assert "w2:\n  did not answer" in page.get_by_role("dialog").inner_text()
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Cancel job…").click()
    page.get_by_text(f"other{MARKUP}: 1 → 2 workers at once.").wait_for()
    assert job in page.get_by_role("dialog").inner_text()
    assert page.evaluate("document.querySelectorAll('b, img[src=x]').length") == 0
    page.get_by_role("button", name="Leave it").click()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Signed out").wait_for()
    page.wait_for_timeout(500)
    assert page.goto(f"{crowd.base}/jobs").status == 401


def test_cookie_is_for_this_page_alone(desk: Page, browser: Any) -> None:
    cookies = desk.context.cookies()
    assert [(cookie["httpOnly"], cookie["sameSite"]) for cookie in cookies] == [(True, "Strict")]
    assert desk.page.evaluate("document.cookie") == ""
    stranger = browser.new_context()
    assert stranger.new_page().goto(f"{desk.base}/jobs").status == 401
    stranger.close()


def test_tenant_sees_its_own_until_revoked(browser: Any, world: Served, tmp_path: Path) -> None:
    own = world.client.submit(ask("1:2", tenant="ads")).job
    other = world.client.submit(ask("1:2", tenant="web")).job
    token = tmp_path / "ads.token"
    token.write_text(world.client.give_token("ads"))
    token.chmod(0o600)
    server = world.client.address
    command = [sys.executable, "-m", "brim", "--server", server, "dashboard", "--no-browser"]
    with running(
        command, tmp_path, ends_itself=True, variables={"BRIM_TOKEN_FILE": str(token)}
    ) as url:
        page = Page(browser, url)
        page.go("/jobs")
        page.row(own).wait_for()
        assert not page.row(other).is_visible()
        page.go(f"/jobs/{other}").get_by_text("none that you may see").wait_for()
        page.go("/tenants").get_by_text("ads · live").wait_for()
        world.client.revoke_token("ads")
        page.page.get_by_text("wrong or missing token").wait_for()
        page.context.close()
    assert "wrong or missing token" in (tmp_path / "dashboard.log").read_text()
    for job in (own, other):
        world.client.cancel(job)


@pytest.mark.parametrize(
    ("width", "scheme"),
    long_after(
        1,
        [
            (TELEPHONE, "light"),
            (TELEPHONE, "dark"),
            (DESK, "dark"),
            (WALL, "light"),
            (WALL, "dark"),
        ],
    ),
)
def test_every_view_fits_and_bars_nobody(desk: Page, browser: Any, width: int, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    state = desk.context.storage_state()
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, storage_state=state
    )
    page = context.new_page()
    for path, text in VIEWS.items():
        page.goto(f"{desk.base}{path}")
        page.get_by_text(text).first.wait_for()
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        found = Axe().run(page).response["violations"]
        grave = [
            (path, each["id"], [node["html"][:200] for node in each["nodes"]][:3])
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
        assert grave == []
    context.close()


def test_guide_has_the_page_of_today(browser: Any, tmp_path: Path) -> None:
    """`BRIM_TEST_PICTURES=1` takes the picture again."""
    assert PICTURE.stat().st_size < 150_000
    if os.environ.get("BRIM_TEST_PICTURES", "") != "1":
        return
    command = [sys.executable, str(ROOT / "tests" / "crowded_desk.py"), "14", "8"]
    with running(command, tmp_path) as url:
        page = Page(browser, url)
        page.page.locator(".ag-row").first.wait_for()
        page.page.get_by_text("Right of now").wait_for()
        page.page.screenshot(path=PICTURE)
        page.context.close()


@LONG
def test_thousands_of_jobs_are_shown_at_once(browser: Any, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tests" / "crowded_desk.py"), "5000", "200"]
    with running(command, tmp_path) as url:
        opened = Page(browser, url)
        opened.go("/jobs")  # what does not change comes from the browser's own copy from now on
        page = opened.go("/jobs")
        page.locator(".ag-row").first.wait_for()
        painted = page.evaluate(
            "performance.getEntriesByName('first-contentful-paint').map(e => e.startTime)"
        )
        page.get_by_text("5,000 jobs").wait_for()
        page.get_by_label("Filter jobs").fill("ranker-4321")
        opened.row("ranker-4321").wait_for()
        page.wait_for_timeout(2000)
        tasks = page.evaluate(
            """new Promise(done => { const found = [];
               new PerformanceObserver(list => list.getEntries().forEach(e => found.push(e.duration)))
                   .observe({ type: "longtask" });
               setTimeout(() => done(found), 10000); })"""
        )
        opened.context.close()
    # 0.3 s and none on an idle host: a task is long from 50 ms on
    assert painted[0] < 3000.0
    assert sorted(tasks)[-1:] < [500.0]


@LONG
@pytest.mark.e2e
def test_job_is_followed_to_its_end_by_mouse(browser: Any, tmp_path: Path) -> None:
    shutil.copy(DIGITS, tmp_path / "digits.py")
    variables = {"BRIM_HOME": str(tmp_path / "state")}

    def brim(*words: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "brim", *words], check=True, timeout=120, cwd=tmp_path,
            env=_environment(variables), capture_output=True,
        )  # fmt: skip

    (tmp_path / "cluster.yaml").write_text("nodes: [{name: n1, workers: 2}]\n")
    brim("up", "--cluster", "cluster.yaml")
    try:
        command = [sys.executable, "-m", "brim", "dashboard", "--no-browser"]
        with running(command, tmp_path, variables=variables) as url:
            opened = Page(browser, url)
            page = opened.page
            page.get_by_role("link", name="Submit").click()
            page.get_by_label("File").click()
            page.get_by_role("option", name="digits.py").click()
            page.get_by_role("button", name="Submit").click()
            page.wait_for_url("**/jobs/digits-1")
            page.locator("dd", has_text="done").first.wait_for(timeout=60_000)
            page.get_by_role("heading", name="Loss").wait_for(timeout=60_000)
            page.locator('[aria-label="Loss over time"] path').first.wait_for(state="attached")
            opened.context.close()
            assert opened.wrong == []
    finally:
        brim("down", "--kill")
