"""What people may ask of a job that is alive. Pure."""

from __future__ import annotations

from brim.domain.job import LARGEST_COUNT, JobSpec
from brim.wire.messages import Ask


def refusal(question: Ask, spec: JobSpec, *, is_stopping: bool) -> str:
    """Why they cannot have what they ask for; empty where they can."""
    if question.verb not in ("resize", "suspend"):
        return f"unknown question {question.verb!r}"
    if question.verb == "suspend":
        return ""
    most, places, servers = spec.micro_batches, question.places, question.servers
    if servers is not None and not spec.servers:
        return (
            "servers: this run began without any, and its model may not be one for them; start "
            "it with --ps"
        )
    if servers is not None and not 0 <= servers <= LARGEST_COUNT:
        return f"servers: got {servers}, need a whole number from 0"
    if servers is not None and not question.workers:
        return _when_stopping(is_stopping)
    if not question.workers >= 1 or (spec.exact and question.workers > most):
        return f"workers: got {question.workers}, need 1 to {most}, the micro-batches of a step"
    if places and (sum(places.values()) != question.workers or min(places.values()) < 1):
        return f"places: got {places}, need {question.workers} in all, at least 1 on each"
    return _when_stopping(is_stopping)


def _when_stopping(is_stopping: bool) -> str:
    return "it is stopping: nothing is resized any more" if is_stopping else ""
