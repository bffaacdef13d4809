"""A cluster as a tree of lines, and the words about one of them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from brim.dashboard.rows import (
    Clock,
    facts_of,
    is_at_risk,
    node_rows,
    progress_of,
    state_of,
    summary_of,
    tenant_rows,
    why_of,
)
from brim.dashboard.sight import ClusterSight
from brim.domain.course import Change, sentence_of
from brim.domain.printable import printable
from brim.domain.quantities import counted
from brim.wire.cluster import JobView

TENANTS, NODES = "tenants", "nodes"
NO_NODE = ""  # the group of jobs without workers
_STATE_CELLS = 10
_PROGRESS_CELLS = 5
_MOST_STORY = 100  # lines


class Line(NamedTuple):
    """A line of the tree: a tenant or node, or a job below it.

    Args:
        group: the name of the tenant or node.
        job: the id of the job; empty: the line is the group's own.
    """

    group: str
    job: str = ""


class Words(NamedTuple):
    """The words about a line: a title, facts by name, and a story, the newest line first."""

    title: str
    facts: dict[str, str]
    story: list[tuple[str, str]]


def lines_of(
    sight: ClusterSight,
    *,
    grouping: str = TENANTS,
    closed: Collection[str] = (),
    with_ended: bool = False,
    filter_text: str = "",
) -> list[Line]:
    """List the lines of the tree.

    Args:
        grouping: `TENANTS` or `NODES`; a job is below each node that it has workers on.
        closed: groups whose jobs are left out.
        with_ended: list jobs that have ended, too.
        filter_text: words that each job shown has in its id, tenant, state or reason.
    """
    words = filter_text.casefold().split()
    groups: dict[str, list[JobView]] = defaultdict(list)
    if not words:
        named = sight.tenants if grouping == TENANTS else ()
        groups.update({view.tenant: [] for view in named})
        groups.update({view.node: [] for view in sight.nodes if grouping == NODES})
    for view in sight.jobs.values():
        if (view.has_ended and not with_ended) or not _has_words(view, words):
            continue
        for group in _groups_of(view, grouping):
            groups[group].append(view)
    lines = []
    for group in sorted(groups, key=lambda name: (name == NO_NODE, _natural(name))):
        lines.append(Line(group))
        if group not in closed:
            jobs = sorted(groups[group], key=_order)
            lines.extend(Line(group, view.job) for view in jobs)
    return lines


def _groups_of(view: JobView, grouping: str) -> Collection[str]:
    if grouping == TENANTS:
        return (view.tenant,)
    return (not view.has_ended and view.nodes) or (NO_NODE,)


def _has_words(view: JobView, words: Sequence[str]) -> bool:
    if not words:
        return True
    text = " ".join((view.job, view.tenant, state_of(view), why_of(view))).casefold()
    return all(word in text for word in words)


def _order(view: JobView) -> tuple[int, tuple[str, int, str]]:
    """Jobs that run come first, then those that wait."""
    return 2 if view.has_ended else int(view.state != "running"), _natural(view.job)


def _natural(name: str) -> tuple[str, int, str]:
    """The order of names that end with numbers.

    >>> sorted(["a-10", "n9", "a-9", "n10"], key=_natural)
    ['a-9', 'a-10', 'n9', 'n10']
    """
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return (stem, int(digits) if digits.isascii() and digits else 0, name)


def place_of(line: Line, lines: Sequence[Line], *, otherwise: int) -> int:
    """The place of a line among others: its own, or that of its job below another group."""
    if line in lines:
        return lines.index(line)
    same = (place for place, other in enumerate(lines) if line.job and other.job == line.job)
    return next(same, otherwise)


def label_of(line: Line, sight: ClusterSight, *, grouping: str, is_closed: bool, width: int) -> str:
    """The text of a line; as long as it must be, at most `width` characters."""
    if not line.job:
        return _fitted(f"{'▸' if is_closed else '▾'} {line.group or 'without a node'}",
                       _note_of(line.group, sight, grouping), width)  # fmt: skip
    view = sight.jobs.get(line.job)
    if view is None:
        return _fitted(f"   {line.job}", "gone", width)
    progress = progress_of(view)
    share = f"{progress:.0f} %" if progress is not None else ""
    state = state_of(view)[:_STATE_CELLS]
    return _fitted(
        f" {'!' if is_at_risk(view) else ' '} {line.job}",
        f"{state:<{_STATE_CELLS}}{share:>{_PROGRESS_CELLS}}",
        width,
    )


def _note_of(group: str, sight: ClusterSight, grouping: str) -> str:
    if grouping == TENANTS:
        tenant = next((view for view in sight.tenants if view.tenant == group), None)
        if tenant is None:
            return ""
        if not tenant.guaranteed:  # nothing is owed, as where no tenants are declared
            return f"{counted(tenant.holds, 'device')} in use"
        return f"{tenant.holds} of {tenant.guaranteed} owed"
    node = next((view for view in sight.nodes if view.node == group), None)
    if node is None:
        return ""
    state = "drained" if node.drained else "" if node.state == "up" else node.state
    return f"{state} {node.held} of {node.devices} in use".strip()


def _fitted(left: str, right: str, width: int) -> str:
    """Two texts at the ends of a line; where it is too short, the left one is cut."""
    left = plain(left)
    room = width - len(right) - 1
    if room < 1:
        return left[:width]
    if len(left) > room:
        left = f"{left[: room - 1]}…"
    return f"{left:<{room}} {right}"


def plain(text: str) -> str:
    """A text of others: nothing in it is an order to the terminal, colours included."""
    return printable(text.replace("\x1b", r"\x1b"))


def summary(sight: ClusterSight) -> str:
    """The cluster in a line, or why nothing new is known."""
    if sight.problem or sight.cluster is None:
        return sight.problem or "waiting for the scheduler"
    view = sight.cluster
    usable = view.devices - view.headroom
    parts = [
        f"{view.held:,} of {counted(usable, 'device')}" if usable else counted(view.held, "device"),
        summary_of(sight.jobs),
        *([f"policy {view.policy}"] if view.policy else []),
        *([view.problem] if view.problem else []),
    ]
    return " · ".join(parts)


def words_of(
    line: Line, sight: ClusterSight, story: Sequence[Change], *, grouping: str, clock: Clock
) -> Words:
    """The words about a line.

    Args:
        story: of the job, where the line is one's.
    """
    if line.job:
        view = sight.jobs.get(line.job)
        if view is None:
            return Words(line.job, {"State": "There is no such job any more."}, [])
        lines = [(clock(change.at), sentence_of(change)) for change in story[-_MOST_STORY:]]
        facts = facts_of(view, clock)
        if (progress := progress_of(view)) is not None:
            facts = {"Progress": _bar(progress), **facts}
        return Words(line.job, facts, lines[::-1])
    if grouping == TENANTS:
        return Words(f"tenant {line.group}", _facts_of_tenant(line.group, sight), [])
    if line.group == NO_NODE:
        return Words("without a node", {"Jobs": "They have no workers now; each says why."}, [])
    return Words(f"node {line.group}", _facts_of_node(line.group, sight), [])


def _bar(percent: float, cells: int = 16) -> str:
    """A bar that needs no colours.

    >>> _bar(50.0, 4)
    '[##..] 50 %'
    """
    full = int(percent * cells / 100.0)
    return f"[{'#' * full}{'.' * (cells - full)}] {percent:g} %"


def _facts_of_tenant(name: str, sight: ClusterSight) -> dict[str, str]:
    jobs = {view.job: view for view in sight.jobs.values() if view.tenant == name}
    facts = {"Jobs": summary_of(jobs)}
    row = next((row for row in tenant_rows(sight.tenants) if row["tenant"] == name), None)
    if row is None:
        return facts
    columns = ("owed", "used", "lent", "borrowed", "lately", "share", "limit", "weight", "cohort")
    values = {column.capitalize(): row[column] for column in columns}
    return facts | {name: str(value) for name, value in values.items() if value not in (None, "")}


def _facts_of_node(name: str, sight: ClusterSight) -> dict[str, str]:
    row = next((row for row in node_rows(sight.nodes, sight.jobs) if row["node"] == name), None)
    if row is None:
        return {"State": "There is no such node any more."}
    columns = ("state", "devices", "held", "free", "host", "jobs", "problem")
    names = {"held": "In use"}
    return {names.get(column, column.capitalize()): str(row[column]) for column in columns}
