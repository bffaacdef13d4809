"""The rounds that count, on a disk of each host: each write adds a file of those since the one before."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from brim.errors import EnvironmentFault
from brim.storage.files import write_whole
from brim.xgboost.trees import BoostedRound, content_of, rounds_in

_NAME = "rounds-{:08d}-{:08d}"


class SavedRounds:
    """A directory of files, each of some rounds.

    Args:
        directory: is made by the first write.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self) -> list[BoostedRound]:
        """Return all rounds, from the first on.

        Raises:
            EnvironmentFault: a file that is not as it was written, or one that is missing.
        """
        rounds: list[BoostedRound] = []
        for path in sorted(self._directory.glob("rounds-*")):
            try:
                digest, _, content = path.read_bytes().partition(b"\n")
            except OSError as error:
                raise EnvironmentFault(f"cannot read {path}: {error}") from error
            if hashlib.sha256(content).hexdigest().encode() != digest:
                raise EnvironmentFault(
                    f"{path} is damaged: remove {self._directory} to start from scratch"
                )
            found = rounds_in(content)
            if path.name != _NAME.format(len(rounds), len(rounds) + len(found)):
                raise EnvironmentFault(
                    f"{self._directory} lacks rounds before {path.name}: remove it to start from scratch"
                )
            rounds += found
        return rounds

    def catch_up(self, kept: Sequence[BoostedRound], rounds: Sequence[BoostedRound]) -> None:
        """Add the rounds that another host has kept, and this one has not.

        Args:
            kept: what `read` returned.
            rounds: those of the host that has the most.

        Raises:
            EnvironmentFault: the rounds here are others, or the disk does not take more.
        """
        count = min(len(kept), len(rounds))
        if list(rounds[:count]) != list(kept[:count]):
            raise EnvironmentFault(
                f"{self._directory} has other rounds than another host: remove it to start from theirs"
            )
        self.write(len(kept), rounds[len(kept) :])

    def write(self, begin: int, rounds: Sequence[BoostedRound]) -> None:
        """Add rounds, whole or not at all.

        Args:
            begin: the number of those that are there.

        Raises:
            EnvironmentFault: the disk does not take them.
        """
        if not rounds:
            return
        content = content_of(rounds)
        digest = hashlib.sha256(content).hexdigest().encode()
        path = self._directory / _NAME.format(begin, begin + len(rounds))
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            write_whole(path, digest + b"\n" + content)
        except OSError as error:
            raise EnvironmentFault(f"cannot write {path}: {error}") from error
