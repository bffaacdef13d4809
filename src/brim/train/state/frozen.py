"""Tensors that training leaves as they are: stored once, and told by the digest of their content.

Candidates are seen by `requires_grad`, and a change of one by its digest, in each checkpoint: a
counter of writes would miss those through `.data`, numpy and other memory of the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from brim.domain.frozen_parts import FrozenPart, parts_of, well_used
from brim.domain.table_parts import StoredFile
from brim.errors import SpecError
from brim.storage.checkpoints import Store
from brim.tensors.file_layout import Bytes, copy_to, lay_out
from brim.tensors.raw import bytes_of, memory_of
from brim.train.state.mapped import MappedFile, files_behind

_LEAST_TENSOR = 64  # bytes: a manifest needs about as many to say where a tensor is
_PLAIN = (Tensor, nn.Parameter, nn.Buffer)
LEAST = 64 << 10  # bytes of frozen tensors that are worth a file, or a question


def candidates_of(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a network that training may leave as they are.

    Args:
        weights: parameters and buffers, by name.
    """
    return {
        name: tensor
        for name, tensor in weights.items()
        if not tensor.requires_grad and type(tensor) in _PLAIN and tensor.nbytes >= _LEAST_TENSOR
    }


def content_digest(tensor: Tensor) -> str:
    """Return the digest of a tensor on the host, in C order: of its type, shape and bytes."""
    digest = xxhash.xxh3_128(f"{tensor.dtype} {tuple(tensor.shape)}")
    digest.update(memory_of(tensor))
    return digest.hexdigest()


def shares_memory(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors are the same numbers in the same memory."""
    return (
        first.layout is second.layout is torch.strided
        and (first.device, first.dtype) == (second.device, second.dtype)
        and (first.shape, first.stride()) == (second.shape, second.stride())
        and first.data_ptr() == second.data_ptr()
    )


def is_frozen_as(tensor: Tensor, value: Tensor) -> bool:
    """Return whether a tensor without a gradient has the bytes of another one, on the host.

    Its pages need not be written to, and stay those of other processes: of forks of the template, or
    of all that have mapped the file that it comes from.
    """
    return (
        not tensor.requires_grad
        and type(tensor) in _PLAIN
        and tensor.layout is value.layout is torch.strided
        and (tensor.dtype, tensor.shape) == (value.dtype, value.shape)
        and all(
            part.is_cpu and part.is_contiguous() and not part.is_conj() and not part.is_neg()
            for part in (tensor, value)
        )
        and torch.equal(bytes_of(tensor), bytes_of(value))
    )


class FrozenTensors:
    """Knowledge of one worker about frozen tensors: files of the last checkpoint, and digests."""

    def __init__(self) -> None:
        self.files: dict[str, StoredFile] = {}  # of the last checkpoint, by digest
        self._seen: dict[str, str] = {}  # the digest that each had in it, by name
        self._mapped: dict[str, MappedFile] | None = None  # by name; None: nobody has looked

    def check_files(self, digests: Mapping[str, str], candidates: Mapping[str, Tensor]) -> None:
        """Check that no tensor has changed since somebody wrote to the file that it is mapped from.

        Args:
            digests: of the candidates, by name.
            candidates: as `seem_frozen` is asked about them next.

        Raises:
            SpecError: one has.
        """
        if self._mapped is None:
            self._mapped = files_behind(candidates)
        for name, digest in digests.items():
            file = self._mapped.get(name)
            if file and self._seen.get(name, digest) != digest and file.has_changed:
                raise SpecError(
                    file.path,
                    got=f"a file that was written to while this job trains from it ({name} lies in it)",
                    need="a file that stays as it is, or that another one takes the place of",
                    hint="write to another path, and mv; brim resume continues from the last checkpoint",
                )

    def know(self, parts: Iterable[FrozenPart]) -> None:
        """Note the files of the last checkpoint."""
        self.files = {digest: file for part in parts for digest, file in part.by_digest.items()}

    def forget(self) -> None:
        """Files may be gone: the next checkpoint looks for them in storage."""
        self.files = {}

    def seem_frozen(self, digests: Mapping[str, str], parameters: Collection[str]) -> set[str]:
        """Return the names of those that are as they were, and note how they are now.

        A parameter without a gradient counts as frozen until it is found changed; a buffer only
        once two checkpoints had it alike.

        Args:
            digests: of the candidates, by name.
            parameters: names of those that are no buffers.
        """
        seen, self._seen = self._seen, dict(digests)
        return {
            name
            for name, digest in digests.items()
            if seen.get(name, digest if name in parameters else "") == digest
        }


class FrozenCopy:
    """The frozen tensors of one checkpoint.

    Args:
        known: knowledge of this worker about them.
        candidates: tensors that may be frozen, by name.

    Attributes:
        digests: of each frozen tensor, by its number in the tree, once `look` has found them.
        data: a file of those that are in no known file, named by their digests.
    """

    def __init__(self, known: FrozenTensors, candidates: Mapping[str, Tensor]) -> None:
        self._known, self._candidates = known, candidates
        self._files: dict[str, StoredFile] = {}
        self.digests: dict[int, str] = {}
        self.data = bytearray()
        self._places: dict[str, Bytes] = {}  # in `data`, of each tensor
        self._forms: dict[str, Tensor] = {}  # their types and shapes

    def numbers_in(self, tensors: Sequence[Tensor]) -> dict[str, int]:
        """Return the number of each candidate in a flattened tree, by name."""
        numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
        return {
            name: numbers[id(tensor)]
            for name, tensor in self._candidates.items()
            if id(tensor) in numbers
        }

    def look(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, int]) -> None:
        """Find the candidates that are as they were, and copy those that are not in storage.

        Args:
            tensors: the candidates as they are in the checkpoint, on the host and in C order.
            numbers: of these in its tree.
        """
        digests = {name: content_digest(tensor) for name, tensor in tensors.items()}
        parameters = {n for n, part in self._candidates.items() if isinstance(part, nn.Parameter)}
        self._known.check_files(digests, self._candidates)
        frozen = self._known.seem_frozen(digests, parameters)
        sizes = {digests[name]: tensor.nbytes for name, tensor in tensors.items()}
        self._files = well_used(self._known.files, sizes)
        new = {digests[name]: tensors[name] for name in frozen if digests[name] not in self._files}
        if sum(tensor.nbytes for tensor in new.values()) >= LEAST:
            self._forms = {d: torch.empty_like(part, device="meta") for d, part in new.items()}
            self.data, self._places = lay_out(new)
            for digest, place in self._places.items():
                copy_to(place, new[digest])
            frozen_digests = self._files.keys() | new.keys()
        else:
            frozen_digests = set(self._files)
        self.digests = {
            numbers[name]: digest for name, digest in digests.items() if digest in frozen_digests
        }

    def store(self, store: Store, *, writer: str, new: list[StoredFile]) -> tuple[FrozenPart, ...]:
        """Write the tensors that are not in storage yet.

        Args:
            store: of the checkpoints.
            writer: whose file it is.
            new: takes the file, so that it can be given up.

        Raises:
            EnvironmentFault: the place did not take it.
        """
        files = dict(self._files)
        if missing := set(self.digests.values()) - files.keys():
            stored = store.frozen_files()  # another worker may have written them
            if unstored := missing - stored.keys():
                new.append(store.write_frozen(self._file_of(unstored), writer=writer))
                stored |= dict.fromkeys(unstored, new[-1])
            files |= {digest: stored[digest] for digest in missing}
        return parts_of(self.digests, files)

    def _file_of(self, digests: Collection[str]) -> bytearray:
        """Return the file of some of the tensors in `data`."""
        if digests == self._places.keys():
            return self.data
        data, places = lay_out({digest: self._forms[digest] for digest in sorted(digests)})
        for digest, place in places.items():
            np.copyto(place, self._places[digest])
        return data

    def end(self, parts: Iterable[FrozenPart] | None) -> None:
        """Note that the checkpoint is official with these parts; None: it failed."""
        if parts is None:
            self._known.forget()
        else:
            self._known.know(parts)
