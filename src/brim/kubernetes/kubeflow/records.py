"""The records of Kubeflow's jobs on their objects.

They are in an annotation: the schema of a status is Kubeflow's, and servers leave out what that does
not have. Callers that may change an object may change that, so the operator signs it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Any

from brim.domain.scheduled_job import ScheduledJob
from brim.errors import EnvironmentFault
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.refusals import Conflict, Invalid, NotFound
from brim.kubernetes.client.resources import PlainObject, Resource
from brim.kubernetes.kubeflow.request import KINDS, KUBEFLOW, MPI, NEWER_MPI
from brim.kubernetes.objects.identities import GROUP, KubeJob
from brim.kubernetes.objects.record_text import pack_record, unpack_record

RECORD = f"{GROUP}/record"  # an annotation
# The versions of each kind that brim runs; where a server has several, the first of them.
RESOURCES = {
    word: tuple(
        Resource(f"{KUBEFLOW}/{version.version}", kind.plural, PlainObject)
        for version in ((kind, NEWER_MPI) if word == MPI else (kind,))
    )
    for word, kind in KINDS.items()
}


def _resource_of(thing: Mapping[str, Any], word: str) -> Resource[PlainObject]:
    """Return the kind of an object, in the version in which it was read."""
    return Resource(thing["apiVersion"], KINDS[word].plural, PlainObject)


def job_of(thing: Mapping[str, Any], word: str) -> KubeJob:
    """Return the name of the job of an object of this kind."""
    return KubeJob(thing["metadata"]["namespace"], thing["metadata"]["name"], word)


def seed_of(uid: str, key: bytes) -> bytes:
    """Return what the secrets of an object's job are made of; the operator alone can."""
    return hmac.new(key, f"ssh/{uid}".encode(), hashlib.sha256).digest()


def sign(record: ScheduledJob, key: bytes) -> str:
    """Return a record as its annotation has it."""
    text = pack_record(record)
    return f"{record.key}.{_mark(record.key, text, key)}.{text}"


def _mark(uid: str, text: str, key: bytes) -> str:
    return hmac.new(key, f"{uid}/{text}".encode(), hashlib.sha256).hexdigest()


def read_records(
    objects: Iterable[tuple[str, PlainObject]], key: bytes
) -> tuple[list[ScheduledJob], dict[str, EnvironmentFault]]:
    """Return the records of objects, each with its kind, and why others cannot be read, by job.

    A record of another object was copied with that, and is none.

    Args:
        key: with which they were signed.
    """
    found: list[ScheduledJob] = []
    unreadable: dict[str, EnvironmentFault] = {}
    for word, thing in objects:
        written = (thing["metadata"].get("annotations") or {}).get(RECORD, "")
        uid = thing["metadata"]["uid"]
        owner, _, rest = written.partition(".")
        mark, _, text = rest.partition(".")
        if owner != uid:
            continue
        id = job_of(thing, word).id
        try:
            if not hmac.compare_digest(mark.encode(), _mark(uid, text, key).encode()):
                raise EnvironmentFault(_unsigned(thing, word))
            found.append(unpack_record(text, uid=uid))
        except EnvironmentFault as fault:
            unreadable[id] = fault
    return found, unreadable


def _unsigned(thing: PlainObject, kind: str) -> str:
    name, namespace = thing["metadata"]["name"], thing["metadata"]["namespace"]
    return (
        f"annotation {RECORD}: got a record without the operator's signature, need one that the "
        f"operator wrote\n  hint: kubectl -n {namespace} delete {KINDS[kind].plural} {name}, then "
        "create it again"
    )


async def write_record(server: ApiServer, job: str, thing: PlainObject, written: str) -> None:
    """Have the object of a job keep its record; one that is gone, or another by now, keeps none.

    Args:
        written: see `sign`.

    Raises:
        EnvironmentFault: the server does not take it.
    """
    body = {"metadata": {"uid": thing["metadata"]["uid"], "annotations": {RECORD: written}}}
    name = KubeJob.parse(job)
    resource = _resource_of(thing, name.kind)
    try:
        await server.merge_patch(resource, name.name, body, namespace=name.namespace)
    except NotFound:
        return
    except (Conflict, Invalid):  # the uid is another one
        await _raise_unless_gone(server, job, thing)


async def write_status(server: ApiServer, job: str, thing: PlainObject, status: Any) -> None:
    """Have the object of a job have this status, as `write_record` does with its record."""
    change = [
        {"op": "test", "path": "/metadata/uid", "value": thing["metadata"]["uid"]},
        {"op": "add", "path": "/status", "value": status},
    ]
    name = KubeJob.parse(job)
    resource = _resource_of(thing, name.kind)
    try:
        await server.json_patch(
            resource, name.name, change, namespace=name.namespace, subresource="status"
        )
    except NotFound:
        return
    except Invalid:
        await _raise_unless_gone(server, job, thing)


async def _raise_unless_gone(server: ApiServer, job: str, thing: PlainObject) -> None:
    """Raise the error that is handled, if the object is still that one."""
    name = KubeJob.parse(job)
    with contextlib.suppress(NotFound):
        resource = _resource_of(thing, name.kind)
        present = await server.get(resource, name.name, namespace=name.namespace)
        if present["metadata"]["uid"] == thing["metadata"]["uid"]:
            raise
