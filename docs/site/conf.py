"""The site of brim: the Markdown of the repository as pages with search, which ask no host for anything.

`make docs` builds it with Sphinx, whose source folder is the whole repository: links between pages
are the same here and where the repository is browsed. A link to a file that is no page leads to a
page that shows the file; one to a folder, to its README or to a list of its files.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parents[2]
project = "brim"
html_title = "brim"
language = "en"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = [
    *(
        f"{name}.md"
        for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY", "CODE_OF_CONDUCT")
    ),
    "docs/**.md",
    "examples/**.md",
    "benchmarks/**.md",
    "lab/README.md",
    "deploy/README.md",
    "changes/README.md",
    "tests/edges/attempts*.md",
]
exclude_patterns = [".*", "build", "dist", "runs", "src", "lab/src", "lab/dist"]
myst_heading_anchors = 6
myst_links_external_new_tab = False
# A heading may skip a level, and code that is cut short cannot always be coloured.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
highlight_language = "text"  # of blocks that name none
html_theme = "furo"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False

# Page -> the entries of the navigation below it: a caption, or none, and pages or patterns.
NAVIGATION: dict[str, dict[str, list[str]]] = {
    "README": {
        "Overview": ["docs/tour", "docs/gallery", "docs/guides/install", "docs/promises", "docs/measurements"],
        "ML engineer": [
            *(f"docs/guides/{page}" for page in (
                "first-job", "your-own-loop", "recipes", "your-script", "your-data", "keras", "fine-tuning",
                "xgboost", "any-command", "checkpoints", "loggers", "gpu", "using-a-model",
                "when-something-goes-wrong",
            )),
            "examples/README",
        ],
        "CTR engineer": [f"docs/guides/{page}" for page in ("embeddings", "asynchronous", "serving")],
        "Administrator": [
            "docs/many-jobs",
            *(f"docs/guides/{page}" for page in (
                "cluster", "submitting", "nodes", "tenants", "clients", "upkeep", "failures", "services", "dashboard",
                "watching",
            )),
            *(f"docs/guides/{page}" for page in ("several-hosts", "kubernetes", "kubeflow-trainer", "slurm", "chaos")),
            "deploy/README",
            "SECURITY",
        ],
        "Researcher": [
            "docs/design/exactness",
            "docs/guides/simulate",
            "benchmarks/README",
            "docs/papers",
            "lab/README",
        ],
        "Author of schedulers": ["docs/guides/write-a-policy", "docs/design/scheduling", "docs/design/live-scheduler"],
        "Reference": ["docs/README", "docs/reference/*", "docs/glossary"],
        "Contributing": [
            "CONTRIBUTING", "CODE_OF_CONDUCT", "docs/path-of-a-job", "docs/where-would-it-go", "docs/design/README",
            "docs/nightly", "changes/README", "CHANGELOG",
        ],
    },
    "docs/reference/python": {"": ["docs/reference/python/*"]},
    "docs/design/README": {
        "": ["docs/design/*", "docs/design/decisions/README", "tests/edges/*"],
    },
    "docs/design/decisions/README": {"": ["docs/design/decisions/*"]},
    "examples/README": {"": ["examples/*/*"]},
    "benchmarks/README": {"": ["benchmarks/*/*"]},
}  # fmt: skip

LINK = re.compile(r"(?<!!)(\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s]+)(\))")
ANCHOR = re.compile(r'^<a id="([\w-]+)"></a>$', re.MULTILINE)
BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
# How a link to a file or folder that is no page is written until the page that shows it is known.
SOURCE = "source:"
myst_url_schemes = {"http": None, "https": None, "mailto": None, SOURCE.rstrip(":"): None}
LARGEST = 300_000  # bytes of a file that is shown


def links(text: str) -> Iterator[re.Match[str]]:
    """The links of a page, outside of its blocks of code."""
    blocks = [block.span() for block in BLOCK.finditer(text)]
    for link in LINK.finditer(text):
        if not any(low <= link.start() < high for low, high in blocks):
            yield link


def target_of(page: str, address: str) -> Path | None:
    """The file or folder of the repository that a link leads to; None if it leads elsewhere."""
    path = address.partition("#")[0]
    if not path or "://" in path or path.startswith("mailto:"):
        return None
    target = Path(os.path.normpath(ROOT / Path(page).parent / path))
    readme = target / "README.md"
    return readme if readme.is_file() else target


def is_page(app: Any, target: Path) -> bool:
    name = target.relative_to(ROOT).as_posix()
    return name.endswith(".md") and name.removesuffix(".md") in app.env.found_docs


def read(app: Any, page: str, source: list[str]) -> None:
    """Rewrite the links of a page that lead to no page, and add its navigation."""

    def rewritten(link: re.Match[str]) -> str:
        target = target_of(page, link[2])
        if link.span() not in places or target is None:
            return link[0]
        if is_page(app, target):
            path = os.path.relpath(target, ROOT / Path(page).parent)
            return f"{link[1]}{path}{''.join(link[2].partition('#')[1:])}{link[3]}"
        return f"{link[1]}{SOURCE}{target.relative_to(ROOT)}{link[3]}"

    text = ANCHOR.sub(r"(\1)=", source[0])
    places = {link.span() for link in links(text)}
    source[0] = LINK.sub(rewritten, text)
    for caption, entries in NAVIGATION.get(page, {}).items():
        heading = f":caption: {caption}\n" if caption else ""
        listed = "\n".join(f"/{entry}" for entry in entries)
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:glob:\n{heading}\n{listed}\n```\n"


def lead_to_sources(app: Any, doctree: Any, page: str) -> None:
    """Have links to files and folders lead to the pages that show them."""
    from docutils import nodes

    for link in doctree.findall(nodes.reference):
        name = link.get("refuri", "")
        if name.startswith(SOURCE):
            link["refuri"] = app.builder.get_relative_uri(
                page, address_of(name.removeprefix(SOURCE))
            )


def address_of(name: str) -> str:
    """The name of the page that shows a file or a folder."""
    return f"source/{name}"


def sources(app: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each file or folder that a link leads to."""
    shown_paths = {
        target
        for page in app.env.found_docs
        for link in links((ROOT / f"{page}.md").read_text(encoding="utf-8"))
        if (target := target_of(page, link[2])) and not is_page(app, target)
    }
    for path in sorted(shown_paths):
        name = path.relative_to(ROOT).as_posix()
        if path.is_dir():
            files = sorted(
                file.name
                for file in path.iterdir()
                if not file.name.startswith((".", "__pycache__"))
            )
            body = (
                "<ul>"
                + "".join(f"<li><code>{escape(file)}</code></li>" for file in files)
                + "</ul>"
            )
        else:
            body = shown(app, path)
        heading = f"<h1>{escape(path.name)}</h1><p><code>{escape(name)}</code></p>"
        yield address_of(name), {"title": name, "body": heading + body}, "page.html"


def shown(app: Any, path: Path) -> str:
    """A file as HTML."""
    if path.stat().st_size > LARGEST:
        return f"<p>{path.stat().st_size:,} bytes: see the repository.</p>"
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return "<p>Not a text: see the repository.</p>"
    try:
        language = get_lexer_for_filename(path.name).aliases[0]
    except (ClassNotFound, IndexError):
        language = "text"
    html: str = app.builder.highlighter.highlight_block(text, language, linenos="inline")
    return html


def finish(app: Any, error: Exception | None) -> None:
    """Make the README the first page."""
    if error is None:
        shutil.copyfile(Path(app.outdir, "README.html"), Path(app.outdir, "index.html"))


def setup(app: Any) -> None:
    app.connect("source-read", read)
    app.connect("doctree-resolved", lead_to_sources)
    app.connect("html-collect-pages", sources)
    app.connect("build-finished", finish)
