"""The stored form of tensors that training leaves as they are. Pure.

They are stored once, in files beside the checkpoints, under digests of their content. A checkpoint
says which of its tensors are there, so a tensor that has changed is simply not among these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brim.domain.table_parts import StoredFile

FROZEN_FOLDER = "frozen"  # where the files lie, beside the folders of checkpoints
_LEAST_USE = 0.5  # of a file's bytes: with less in use, its tensors are stored anew


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenPart:
    """A file of frozen tensors in a checkpoint.

    Args:
        file: safetensors, named by the digests of their content.
        tensors: the number of each in the checkpoint's tree, and its digest.
    """

    file: StoredFile
    tensors: tuple[tuple[int, str], ...]

    @property
    def by_digest(self) -> dict[str, StoredFile]:
        """The file of each digest that the checkpoint uses."""
        return {digest: self.file for _, digest in self.tensors}


def parts_of(digests: Mapping[int, str], files: Mapping[str, StoredFile]) -> tuple[FrozenPart, ...]:
    """Return the parts of a checkpoint.

    Args:
        digests: of its frozen tensors, by their numbers in the tree.
        files: in which each is, by digest.
    """
    tensors: dict[StoredFile, list[tuple[int, str]]] = {}
    for number, digest in sorted(digests.items()):
        tensors.setdefault(files[digest], []).append((number, digest))
    return tuple(
        FrozenPart(file=file, tensors=tuple(tensors[file]))
        for file in sorted(tensors, key=lambda file: file.name)
    )


def well_used(files: Mapping[str, StoredFile], sizes: Mapping[str, int]) -> dict[str, StoredFile]:
    """Return the files that are worth keeping, by the digests that are in use.

    So files and restores are at most about twice as large as what they are needed for.

    Args:
        files: in which tensors are, by digest.
        sizes: bytes of the tensors in use, by digest.

    >>> old = StoredFile(name="frozen/w1-a.safetensors", sha256="", size_bytes=100)
    >>> files = {"a": old, "b": old}
    >>> [sorted(well_used(files, sizes)) for sizes in ({"a": 60}, {"b": 40}, {"a": 20, "b": 40})]
    [['a'], [], ['a', 'b']]
    """
    used: dict[StoredFile, int] = {}
    for digest in files.keys() & sizes.keys():
        used[files[digest]] = used.get(files[digest], 0) + sizes[digest]
    return {
        digest: files[digest]
        for digest in files.keys() & sizes.keys()
        if used[files[digest]] >= _LEAST_USE * files[digest].size_bytes
    }
