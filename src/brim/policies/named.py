"""The policies by name.

A new one is a file here and a line below (docs/guides/write-a-policy.md).
"""

from __future__ import annotations

from brim.domain.schedule import Policy
from brim.policies.brim import brim
from brim.policies.chronus import chronus
from brim.policies.edf import edf
from brim.policies.edf_admission import edf_admission
from brim.policies.elasticflow import elasticflow
from brim.policies.fifo_gang import fifo_gang
from brim.policies.gandiva import gandiva
from brim.policies.pollux import pollux
from brim.policies.themis import themis
from brim.policies.tiresias import tiresias

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
