"""ElasticDL's experiments 1 and 2, simulated: python -m benchmarks.scheduling-experiments.run"""

from __future__ import annotations

from brim.domain.resizing import OVERHEADS
from brim.policies.baselines.elasticflow import elasticflow
from brim.policies.baselines.fifo_gang import fifo_gang
from brim.policies.brim import brim
from brim_lab.experiments.simulated import around_a_service, two_jobs


def main() -> None:
    print("gang, no overhead ", two_jobs(fifo_gang, overheads=OVERHEADS["none"]))
    print("elasticflow, brim's overheads", two_jobs(elasticflow))
    for name in ("none", "brim", "torchrun", "restart"):
        print(f"brim, overheads of {name}", two_jobs(brim, overheads=OVERHEADS[name]))
    print("beside a service  ", around_a_service(brim))


if __name__ == "__main__":
    main()
