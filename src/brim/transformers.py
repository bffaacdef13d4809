"""transformers' Trainer with brim's loop inside.

`Trainer` replaces `transformers.Trainer`. `Elastic` does the same for a Trainer of another library:
`class SFT(brim.transformers.Elastic, trl.SFTTrainer): ...`.
"""

from __future__ import annotations

from importlib.util import find_spec

from brim.errors import SpecError
from brim.host.installation import command_for

__all__ = ["Elastic", "Trainer"]

_missing = [name for name in ("transformers", "accelerate") if find_spec(name) is None]
if _missing:
    raise SpecError(
        "brim.transformers",
        got=f"no package {_missing[0]}",
        need="the extra 'transformers'",
        hint=command_for("transformers"),
    )

import transformers  # noqa: E402 - where it is missing, the error above says what to install

from brim.train.trainer.elastic import Elastic  # noqa: E402


class Trainer(Elastic, transformers.Trainer):  # type: ignore[misc]
    """`transformers.Trainer`, trained alone or by any number of workers with the same weights.

    See `Elastic`, and the guide on fine-tuning.
    """
