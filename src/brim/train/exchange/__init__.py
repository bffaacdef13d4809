"""The exchange of a step: contributions of micro-batches, and their sum along the canonical tree."""
