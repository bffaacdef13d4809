"""Jobs that use a trained model: evaluation, prediction, export."""
