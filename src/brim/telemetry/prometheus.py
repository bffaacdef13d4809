"""Metrics in the text that Prometheus reads, version 0.0.4. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_ESCAPES_OF_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})


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
    for value, labels, suffix in metric.samples:
        pairs = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items())
        yield f"{metric.name}{suffix}{f'{{{pairs}}}' if pairs else ''} {value}"
