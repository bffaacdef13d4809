"""Calibration of a model that is trained on a share of the negatives."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from brim.errors import SpecError


class Calibrated(nn.Module):
    """A model whose probabilities, outside training, are those of all rows.

    Trained on all positives and a share w of the negatives, a model predicts q where q / (q + (1 -
    q) / w) is right. Of the logit that is the logarithm of w, which is added in evaluation,
    predictions and exports; in training, the logits are the model's own.

    Args:
        model: gives logits of a target of 0 and 1.
        negatives: the share w of the negatives that it is trained on, as a brim dataset counts it;
            1 corrects nothing.

    Raises:
        SpecError: no share above 0, up to 1.

    Source: He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", ADKDD 2014,
    section 6.3.
    """

    def __init__(self, model: nn.Module, negatives: float) -> None:
        super().__init__()
        if not 0 < negatives <= 1:
            raise SpecError(
                "Calibrated(negatives=)",
                got=str(negatives),
                need="a share above 0, up to 1",
                hint="dataset('train').negatives",
            )
        self.model, self.negatives = model, negatives

    def forward(self, *inputs: Any) -> Tensor:
        logits: Tensor = self.model(*inputs)
        return logits if self.training else logits + math.log(self.negatives)
