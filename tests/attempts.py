"""The pages of attempts, which lie beside the tests that make the attempts again."""

from __future__ import annotations

from pathlib import Path


def check_page(page: Path, tables: str) -> None:
    """Compare the tables of a page, as Markdown, with those that a test has found."""
    tables = tables.strip()
    text = page.read_text(encoding="utf-8")
    assert f"\n\n{tables}\n\n" in f"{text}\n", f"{page.name} should say:\n{tables}"
