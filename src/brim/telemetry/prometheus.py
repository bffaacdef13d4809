"""Metrics in the texts that Prometheus reads: its own, version 0.0.4, and OpenMetrics 1.0.0. Pure.

Sources: prometheus.io/docs/instrumenting/exposition_formats, and the specification of OpenMetrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_OPEN_METRICS = "application/openmetrics-text"
_OPEN_CONTENT_TYPE = f"{_OPEN_METRICS}; version=1.0.0; charset=utf-8"
_UNITS = ("seconds", "bytes", "ratio")  # of names that end in one
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_ESCAPES_OF_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_COUNTER_SUFFIX = "_total"


class MetricSample(NamedTuple):
    """One value of a metric.

    Attributes:
        suffix: behind the metric's name, as histograms have it.
    """

    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""


class MetricFamily(NamedTuple):
    """A metric with all its values.

    Attributes:
        name: ends in its unit; that of a counter ends in `_total`.
        help: what it counts or measures, in a sentence.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[MetricSample]


def counter(name: str, help: str, value: float) -> MetricFamily:
    """Return a counter without labels."""
    return MetricFamily(name, "counter", help, [MetricSample(value)])


def gauge(name: str, help: str, value: float) -> MetricFamily:
    """Return a gauge without labels."""
    return MetricFamily(name, "gauge", help, [MetricSample(value)])


class Histogram:
    """Counts of observations, up to bounds.

    Args:
        bounds: ascending; what is beyond the last of them is counted, too.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value, among those that are at most the next bound."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def metric(self, name: str, help: str) -> MetricFamily:
        """Return it as a metric."""
        return MetricFamily(name, "histogram", help, list(self._samples()))

    def _samples(self) -> Iterator[MetricSample]:
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield MetricSample(total, {"le": bound}, "_bucket")
        yield MetricSample(self._sum, {}, "_sum")
        yield MetricSample(total, {}, "_count")


def exposition(metrics: Iterable[MetricFamily], accept: str) -> tuple[str, str]:
    """Return the content type and the text of metrics, in the format that a scraper prefers.

    Args:
        accept: its header; empty: Prometheus' own text.
    """
    if _prefers_open_metrics(accept):
        return _OPEN_CONTENT_TYPE, in_open_text(metrics)
    return _CONTENT_TYPE, in_text(metrics)


def _prefers_open_metrics(accept: str) -> bool:
    """Say if OpenMetrics is accepted, and no less than plain text.

    >>> _prefers_open_metrics("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    True
    >>> _prefers_open_metrics("text/plain"), _prefers_open_metrics("*/*")
    (False, False)
    """
    weights: dict[str, float] = {}
    for choice in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in choice.split(";"))
        values = dict(parameter.partition("=")[::2] for parameter in parameters)
        try:
            weight = float(values.get("q", "1"))
        except ValueError:
            weight = 0.0
        weights[kind] = max(weight, weights.get(kind, 0.0))
    weight = weights.get(_OPEN_METRICS, 0.0)
    return weight > 0.0 and weight >= weights.get("text/plain", 0.0)


def in_open_text(metrics: Iterable[MetricFamily]) -> str:
    """Return metrics as OpenMetrics has them.

    There the family of a counter has no `_total`, a unit has a line, and the text has an end.

    >>> print(in_open_text([counter("sent_total", "Sent.", 2)]), end="")
    # TYPE sent counter
    # HELP sent Sent.
    sent_total 2
    # EOF
    """
    return "".join(
        [*(f"{line}\n" for metric in metrics for line in _open_lines(metric)), "# EOF\n"]
    )


def _open_lines(metric: MetricFamily) -> Iterator[str]:
    if not metric.samples:
        return
    family = metric.name.removesuffix(_COUNTER_SUFFIX) if metric.kind == "counter" else metric.name
    yield f"# TYPE {family} {metric.kind}"
    unit = family.rpartition("_")[2]
    if unit in _UNITS and unit != family:
        yield f"# UNIT {family} {unit}"
    yield f"# HELP {family} {metric.help.translate(_ESCAPES)}"
    yield from _sample_lines(metric)


def in_text(metrics: Iterable[MetricFamily]) -> str:
    r"""Return metrics as a text; one without values is left out.

    >>> in_text([MetricFamily("jobs", "gauge", "Jobs.", [MetricSample(2, {"state": 'a"b'})])])
    '# HELP jobs Jobs.\n# TYPE jobs gauge\njobs{state="a\\"b"} 2\n'
    """
    return "".join(f"{line}\n" for metric in metrics for line in _lines(metric))


def _lines(metric: MetricFamily) -> Iterator[str]:
    if not metric.samples:
        return
    yield f"# HELP {metric.name} {metric.help.translate(_ESCAPES_OF_HELP)}"
    yield f"# TYPE {metric.name} {metric.kind}"
    yield from _sample_lines(metric)


def _sample_lines(metric: MetricFamily) -> Iterator[str]:
    for value, labels, suffix in metric.samples:
        pairs = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items())
        yield f"{metric.name}{suffix}{f'{{{pairs}}}' if pairs else ''} {value}"
