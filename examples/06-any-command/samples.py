"""Count how often each sample was read by the steps of a trainer that count.

python samples.py runs/latest/saved
"""

import json
import sys
from collections import Counter
from pathlib import Path


def steps_of(folder):
    """Samples by step: of those that were made more than once, the last start counts."""
    starts = {}
    for path in Path(folder).glob("samples-*.jsonl"):
        start = int(path.stem.split("-")[1])
        for line in path.read_text().splitlines():
            made = json.loads(line)
            starts.setdefault(start, {}).setdefault(made["step"], []).extend(made["samples"])
    steps = {}
    for start in sorted(starts):
        steps |= starts[start]
    redone = sum(map(len, starts.values())) - len(steps)
    return steps, redone


steps, redone = steps_of(sys.argv[1])
reads = Counter(sample for samples in steps.values() for sample in samples)
print(
    json.dumps(
        {
            "steps": len(steps),
            "samples_per_step": sorted({len(samples) for samples in steps.values()}),
            "samples": len(reads),
            "reads": dict(sorted(Counter(reads.values()).items())),
            "steps_redone": redone,
        }
    )
)
