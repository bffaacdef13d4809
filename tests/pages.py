"""Reads the pages that brim writes, and finds everything that they would load from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_VOID = {"meta", "br"}


class _Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in _VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "action"):
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(page: str) -> _Checker:
    checker = _Checker()
    checker.feed(page)
    checker.close()
    assert not checker.open
    return checker


def assert_loads_nothing(page: str) -> None:
    """The page is whole by itself: no links out, and no id twice."""
    found = checked(page)
    assert all(link.startswith("#") for link in found.links)
    assert not {"link", "img", "iframe"} & set(found.tags)  # a script has no src: see links
    assert not re.search(r"\b(fetch|import|XMLHttpRequest|WebSocket|eval)\s*\(", page)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert len(found.ids) == len(set(found.ids))
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(found.ids)
