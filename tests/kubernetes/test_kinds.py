"""Kinds of jobs that others have defined: entry points name them, and the operator knows no other way."""

from __future__ import annotations

from brim.kubernetes.kinds import foreign_families
from brim.kubernetes.kubeflow.request import KINDS
from brim.kubernetes.objects.foreign_kinds import foreign_kinds
from brim.kubernetes.objects.identities import KIND, KubeJob


def test_entry_points_name_all_kinds_of_a_family() -> None:
    (family,) = foreign_families()
    assert foreign_kinds() == {word: kind.name for word, kind in KINDS.items()}
    assert set(family.words) == foreign_kinds().keys()


def test_an_elasticjob_may_be_named_as_a_kind() -> None:
    job = KubeJob("team", "tfjob")
    assert KubeJob.parse(job.id) == job
    assert job.kind_name == KIND
