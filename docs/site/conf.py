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
            *(f"docs/guides/{page}" for page in ("cluster", "several-hosts", "kubernetes", "slurm", "chaos")),
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
SOURCE = (
    "source:"  # how a link to a file or folder that is no page is written until its page is known
)
myst_url_schemes = {"http": None, "https": None, "mailto": None, SOURCE.rstrip(":"): None}
LARGEST = 300_000  # bytes of a file that is shown; a larger one is copied
linked_paths: set[str] = set()


def read(app: Any, page: str, source: list[str]) -> None:
    """Rewrite the links of a page that lead to no page, and add its navigation."""
    folder = ROOT / Path(page).parent

    def rewritten(link: re.Match[str]) -> str:
        path, mark, part = link[2].partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return link[0]
        target = Path(os.path.normpath(folder / path))
        if target.is_dir() and (target / "README.md").exists():
            target /= "README.md"
        name = target.relative_to(ROOT).as_posix()
        if name.removesuffix(".md") in app.env.found_docs and name.endswith(".md"):
            return f"{link[1]}{os.path.relpath(target, folder)}{mark}{part}{link[3]}"
        linked_paths.add(name)
        return f"{link[1]}{SOURCE}{name}{link[3]}"

    blocks = [block.span() for block in BLOCK.finditer(source[0])]

    def outside(link: re.Match[str]) -> bool:
        return not any(low <= link.start() < high for low, high in blocks)

    source[0] = ANCHOR.sub(r"(\1)=", source[0])
    source[0] = LINK.sub(lambda link: rewritten(link) if outside(link) else link[0], source[0])
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
    for name in sorted(linked_paths):
        path = ROOT / name
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
        heading = f"<h1><code>{escape(name)}</code></h1>"
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
    html: str = app.builder.highlighter.highlight_block(text, language, linenos="table")
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
