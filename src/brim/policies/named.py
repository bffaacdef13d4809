"""The policies by name.

A new one is a file here and a line below (docs/guides/write-a-policy.md).
"""

from __future__ import annotations

from brim.domain.schedule import Policy
from brim.policies.baselines.chronus import chronus
from brim.policies.baselines.edf import edf
from brim.policies.baselines.edf_admission import edf_admission
from brim.policies.baselines.elasticflow import elasticflow
from brim.policies.baselines.fifo_gang import fifo_gang
from brim.policies.baselines.gandiva import gandiva
from brim.policies.baselines.pollux import pollux
from brim.policies.baselines.themis import themis
from brim.policies.baselines.tiresias import tiresias
from brim.policies.brim import brim

POLICIES: dict[str, Policy] = {
    "brim": brim,
    "elasticflow": elasticflow,
    "edf": edf,
    "edf-admission": edf_admission,
    "fifo-gang": fifo_gang,
    "gandiva": gandiva,
    "tiresias": tiresias,
    "themis": themis,
    "chronus": chronus,
    "pollux": pollux,
}
