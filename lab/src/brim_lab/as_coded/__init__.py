"""The policies of ElasticFlow's published artifact, replayed with their faults.

With the faults, the artifact's figures come back.

These are replays, not policies: what the artifact computes cannot be had apart from its clock
(merged windows, planned ends, overhead at every event), so they never see a snapshot and never run
a live cluster. They were written from the specification and from reading what the artifact does; no
text or code of it is here.
"""
