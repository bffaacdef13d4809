"""ElasticDL's experiments, with real jobs under a real scheduler.

What the simulator predicts for them stands beside.

`scale`, `course`, `prediction` and `claims` are pure; `cluster` starts and asks processes, and
`two_jobs` and `changing_workers` are the experiments.
"""
