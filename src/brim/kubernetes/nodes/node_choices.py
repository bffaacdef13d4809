"""The nodes that jobs may have: their templates' labels and taints, by node. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from brim.kubernetes.client.kube_types import KubeNode, Taint
from brim.kubernetes.nodes.node_selection import NodeChoice


class NodeChoices:
    """The choices that jobs make of nodes.

    Most jobs choose as others do, and most nodes are as others: what is known is kept by distinct
    choices, and nodes that are alike share it.

    Attributes:
        has_news: other jobs make a choice than when `settle` was called.
        are_others: other choices are made at all.
    """

    def __init__(self) -> None:
        self.has_news = self.are_others = False
        self._choices: dict[str, NodeChoice] = {}  # by job
        self._choosers: dict[NodeChoice, set[str]] = {}  # the jobs that make each
        self._held_back: dict[str, float] = {}  # jobs that are to have no node, until when
        self._refused: dict[str, tuple[NodeChoice, ...]] = {}  # by node
        self._refusing: dict[
            tuple[NodeChoice, ...], frozenset[str]
        ] = {}  # all jobs that make these

    @property
    def holds_back(self) -> bool:
        """True where a job may have nodes again only once time has passed."""
        return bool(self._held_back)

    def choose(self, job: str, choice: NodeChoice) -> None:
        """Know which nodes the template of a job allows."""
        if self._choices.get(job) == choice:
            return
        self.drop(job)
        self._choices[job] = choice
        if choice not in self._choosers:
            self._choosers[choice] = set()
            self._update_common_choice()
        self._choosers[choice].add(job)
        self._news()

    def drop(self, job: str) -> None:
        """Know that a job has ended, or is gone."""
        self.release(job)
        choice = self._choices.pop(job, None)
        if choice is None:
            return
        self._choosers[choice].discard(job)
        if not self._choosers[choice]:
            del self._choosers[choice]
            self._update_common_choice()
        self._news()

    def hold_back(self, job: str, release_at: float) -> None:
        """Let a job have no node until a time, monotonic seconds."""
        self._held_back[job] = release_at
        self._news()

    def release(self, job: str) -> None:
        """Let a job have nodes that was held back."""
        if self._held_back.pop(job, None) is not None:
            self._news()

    def release_due(self, now: float) -> None:
        """Let jobs have nodes whose time has come."""
        for job in [job for job, release_at in self._held_back.items() if now >= release_at]:
            self.release(job)

    def settle(self) -> None:
        """Take in the latest changes."""
        self.has_news = self.are_others = False

    def forget_node(self, name: str) -> None:
        """Know that a node has changed, or is gone."""
        self._refused.pop(name, None)

    def allow(self, node: KubeNode, taints: Sequence[Taint]) -> bool:
        """Return whether some job may come to a node with these taints."""
        return any(choice.allows(node, taints) for choice in self._choosers)

    def refused_by(self, node: KubeNode, taints: Sequence[Taint]) -> frozenset[str]:
        """Return the jobs whose templates do not allow a node, and those that are held back.

        Args:
            taints: of the node. Where no job may come for them, they say nothing of jobs: each
                cluster has nodes for its own programs.
        """
        name = node.metadata.name
        if name not in self._refused:
            relevant_taints = taints if taints and self.allow(node, taints) else ()
            refused = (
                choice for choice in self._choosers if not choice.allows(node, relevant_taints)
            )
            self._refused[name] = tuple(refused)
        refused_here = self._refused[name]
        if refused_here not in self._refusing:
            jobs = (self._choosers[choice] for choice in refused_here)
            self._refusing[refused_here] = frozenset(self._held_back).union(*jobs)
        return self._refusing[refused_here]

    def may_stay(
        self, jobs: Collection[str], node: KubeNode, taints: Sequence[Taint]
    ) -> frozenset[str]:
        """Return those of some jobs on a node that bear these taints of it."""
        choices = {job: self._choices[job] for job in jobs if job in self._choices}
        return frozenset(
            job
            for job, choice in choices.items()
            if job not in self._held_back and choice.allows(node, taints)
        )

    def _news(self) -> None:
        self._refusing.clear()
        self.has_news = True

    def _update_common_choice(self) -> None:
        self._refused.clear()
        self.are_others = True
