"""Draws demo.svg, the picture of the README, from demo.json: what two real runs have on record.

    python docs/pictures/make_demo.py              draws again
    python docs/pictures/make_demo.py RUN ALONE    takes the records of two runs, and draws

RUN is what `make demo` leaves, ALONE the same job with `--workers 1` and no faults. Their losses and
digests have to be the same, step by step: there is no picture otherwise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from brim.telemetry.events import FaultPerformed, RoundFormed
from brim.telemetry.history import read_history

FOLDER = Path(__file__).parent
RECORDS, PICTURE = FOLDER / "demo.json", FOLDER / "demo.svg"
WIDTH, HEIGHT = 880, 418  # units of the drawing, as all places below
LEFT, RIGHT = 58, 862  # of both panels
WORKERS, LOSS = (96, 178), (222, 340)  # top and bottom of each
BIN = 5  # steps whose mean loss is one point

_STYLE = """
  .card { fill: #ffffff; stroke: #e2e4e8 } text { font: 13px system-ui, sans-serif; fill: #1d2430 }
  .faint { fill: #5c6675 } .mono { font: 12px ui-monospace, monospace } .bold { font-weight: 600 }
  .grid { stroke: #e2e4e8 } .broken { stroke: #a9c1f2; fill: none; stroke-width: 7 }
  .alone { stroke: #1d2430; fill: none; stroke-width: 1.4 } .area { fill: #a9c1f2; fill-opacity: .55 }
  .kill { stroke: #c0262d } .add { stroke: #15803d } .term { stroke: #a15c07 }
  text.kill { fill: #c0262d; stroke: none } text.add { fill: #15803d; stroke: none }
  text.term { fill: #a15c07; stroke: none }
  @media (prefers-color-scheme: dark) {
    .card { fill: #1a1f27; stroke: #2e3643 } text, .bold { fill: #e6e9ee } .faint { fill: #9aa5b5 }
    .grid { stroke: #2e3643 } .broken { stroke: #3b558f } .area { fill: #3b558f }
    .alone { stroke: #e6e9ee } .kill { stroke: #ff7b7b } .add { stroke: #4cc07a }
    .term { stroke: #e0a458 } text.kill { fill: #ff7b7b } text.add { fill: #4cc07a }
    text.term { fill: #e0a458 }
  }"""
# Clause of `--faults` -> what it does, in the words of the picture.
_FAULTS = {
    "kill": "kill -9 of a worker",
    "add": "two workers join",
    "term": "SIGTERM: a worker leaves",
}


def recorded(run: Path) -> dict[str, Any]:
    """What the picture needs of a run's records."""
    history = read_history(run)
    assert history.started is not None
    assert history.ended is not None, f"{run} has not ended"
    rounds = [event for event in history.events if isinstance(event, RoundFormed)]
    faults = [event for event in history.events if isinstance(event, FaultPerformed)]
    losses = {step.step: step.loss for step in history.steps}
    return {
        "workers": [[event.step, event.world_size] for event in rounds],
        "faults": [[event.step, event.text] for event in faults],
        "losses": [losses[step] for step in sorted(losses)],
        "weights_sha256": history.ended.summary["weights_sha256"],
        "versions": history.started.versions,
        "date": f"{datetime.fromtimestamp(history.started.at, UTC):%Y-%m-%d}",
    }


def draw(records: dict[str, Any]) -> str:
    """The picture as SVG."""
    broken, alone = records["broken"], records["alone"]
    steps = len(broken["losses"])
    most = max(count for _, count in broken["workers"])
    points = _means(broken["losses"])
    low, high = min(points), max(points)

    def across(step: float) -> float:
        return LEFT + (RIGHT - LEFT) * step / steps

    def up(value: float, panel: tuple[int, int], bottom: float, top: float) -> float:
        return panel[1] - (panel[1] - panel[0]) * (value - bottom) / (top - bottom)

    def curve(kind: str, values: Sequence[float]) -> str:
        places = [
            f"{across((number + 0.5) * BIN):.1f},{up(value, LOSS, low, high):.1f}"
            for number, value in enumerate(_means(values))
        ]
        return f'<polyline class="{kind}" points="{" ".join(places)}"/>'

    def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(_title(records))}</title>",
        f"<style>{_STYLE}\n</style>",
        f'<rect class="card" x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="10"/>',
        text(LEFT, 28, "workers", "bold"),
    ]
    # Workers: an area, with a line at each change, whose names stand above one another.
    ends = [*(step for step, _ in broken["workers"][1:]), steps]
    for (start, count), end in zip(broken["workers"], ends, strict=True):
        top = up(count, WORKERS, 0, most)
        parts.append(
            f'<rect class="area" x="{across(start):.1f}" y="{top:.1f}" '
            f'width="{across(end) - across(start):.1f}" height="{WORKERS[1] - top:.1f}"/>'
        )
    for number in range(0, most + 1, 2):
        y = up(number, WORKERS, 0, most)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text(LEFT - 8, y + 4, str(number), "faint", "end"))
    for place, (step, clause) in enumerate(broken["faults"]):
        kind, y = clause.split()[0], 74 - 20 * (len(broken["faults"]) - 1 - place)
        x = across(step)
        parts.append(
            f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 5}" y2="{WORKERS[1]}"/>'
        )
        parts.append(text(x + 5, y + 8, f"step {step}: {_FAULTS[kind]}", kind))
    # The loss of both runs, one above the other.
    parts.append(text(LEFT, LOSS[0] - 14, "loss", "bold"))
    parts.append(
        text(
            LEFT + 40,
            LOSS[0] - 14,
            f"of both runs, equal to the last bit at each of {steps} steps",
            "faint",
        )
    )
    for y in LOSS:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}"/>')
    parts += [
        text(LEFT - 8, LOSS[0] + 4, f"{high:.2f}", "faint", "end"),
        text(LEFT - 8, LOSS[1] + 4, f"{low:.2f}", "faint", "end"),
        curve("broken", broken["losses"]),
        curve("alone", alone["losses"]),
        text(RIGHT, LOSS[1] + 18, f"step {steps}", "faint", "end"),
    ]
    for y, run, kind, name in (
        (378, broken, "broken", f"{_counts(broken)} workers"),
        (402, alone, "alone", f"{_counts(alone)} worker, no faults"),
    ):
        parts.append(
            f'<line class="{kind}" x1="{LEFT}" x2="{LEFT + 30}" y1="{y - 4}" y2="{y - 4}"/>'
        )
        parts.append(text(LEFT + 40, y, name))
        parts.append(text(RIGHT, y, f"sha256 {run['weights_sha256']}", "mono", "end"))
    return "\n".join([*parts, "</svg>", ""])


def _title(records: dict[str, Any]) -> str:
    broken = records["broken"]
    return (
        f"The demo of brim on {broken['date']}: {_counts(broken)} workers, one of them killed, two "
        f"that join and one that leaves, end with the same weights as one worker"
    )


def _counts(run: dict[str, Any]) -> str:
    """The numbers of workers of a run, in order."""
    return " → ".join(str(count) for count in dict.fromkeys(count for _, count in run["workers"]))


def _means(values: Sequence[float]) -> list[float]:
    parts = [values[start : start + BIN] for start in range(0, len(values), BIN)]
    return [sum(part) / len(part) for part in parts]


def main(words: Sequence[str]) -> None:
    if words:
        broken, alone = (recorded(Path(word)) for word in words)
        assert broken["losses"] == alone["losses"], "the losses differ"
        assert broken["weights_sha256"] == alone["weights_sha256"], "the digests differ"
        RECORDS.write_text(json.dumps({"broken": broken, "alone": alone}) + "\n", encoding="utf-8")
    PICTURE.write_text(draw(json.loads(RECORDS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
