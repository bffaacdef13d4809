"""The imports of a process that others are forked from: torch, and the modules of jobs."""

from __future__ import annotations

import gc


def warm_up() -> bool:
    """Import the modules of jobs; whether this process may be forked then.

    Without torch there is nothing to import.
    """
    gc.disable()  # it would look at all that is imported several times, for a quarter of the time
    try:
        import brim.agent.__main__
        import brim.master.__main__
        import brim.worker.process
        import brim.worker.template  # noqa: F401
        from brim.worker import gpus, warm
    except ImportError:
        return False
    finally:
        gc.enable()
    warm.import_torch()
    gc.freeze()  # the collector would otherwise touch, and so copy, every page that forks share
    return warm.forking_is_safe() and gpus.forks_can_use_gpus()


def shuffle() -> None:
    """Unseeded randomness differs between processes; Python sees to its own."""
    import numpy

    numpy.random.seed()
