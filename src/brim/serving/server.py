"""The process that serves: it opens a version, listens, and looks for further ones."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from brim.errors import BrimError, SpecError
from brim.serving.application import Figures, application
from brim.serving.batches import Batches
from brim.serving.bodies import MOST_ROWS
from brim.serving.bundle import Model, changed, open_bundle
from brim.serving.manifest import MANIFEST
from brim.serving.versions import Found, Versions, next_of, passed_over
from brim.storage.ownership import check_ours
from brim.wire.certificate_file import CertificateFile
from brim.wire.door import BACKLOG, Door, answering
from brim.wire.listening import joined_address, listen_on

_POLL_INTERVAL = 0.2  # seconds between two looks at the directory
_ROOM = 4 * MOST_ROWS  # rows that may wait
_TO_END = 5  # seconds for requests that are under way in the end

_log = logging.getLogger(__name__)


def serve(
    place: Path,
    *,
    host: str,
    port: int,
    token: str,
    certificate: CertificateFile | None,
    most: int,
    wait: float,
    say: Callable[[str], None],
) -> None:
    """Answer until SIGINT or SIGTERM; requests that came before that are answered.

    Args:
        place: a bundle, or a directory of versions, which is watched.
        host, port: where to listen; port 0 picks one.
        token: that requests must have; empty for none.
        certificate: to show clients; None: nothing is encrypted.
        most: rows that are computed together.
        wait: seconds that a batch waits for further requests.
        say: is told what people should know.

    Raises:
        SpecError: there is no bundle.
        EnvironmentFault: it is damaged, or the port is taken.
    """
    versions = None if (place / MANIFEST).exists() or not place.is_dir() else Versions(place)
    if versions is not None:
        check_ours(place, field=str(place))
    gc.freeze()  # the cells of a large request would have the collector look at all imports again
    model, candidates = (open_bundle(place), []) if versions is None else _first(versions)
    torch.set_num_threads(model.manifest.threads)
    asyncio.run(
        _serve(
            model,
            versions,
            candidates,
            host=host,
            port=port,
            token=token,
            certificate=certificate,
            limit=most,
            wait=wait,
            say=say,
        )
    )


def _first(versions: Versions) -> tuple[Model, list[Found]]:
    """The newest bundle that can be opened, and the candidates at its choice."""
    while True:
        candidates = versions.look()
        found, _ = next_of(candidates, None)
        if found is None:
            problems_text = "; ".join(versions.problems.values())
            is_run = (versions.directory / "checkpoints").is_dir()
            run, place = (versions.directory, "versions") if is_run else ("RUN", versions.directory)
            raise SpecError(
                str(versions.directory),
                got=f"no bundle{f' that can be served: {problems_text}' if problems_text else ''}",
                need="at least one",
                hint=f"brim export {run} --output {place}/1 --format bundle"
                f"{'; brim serve versions' if is_run else ''}",
            )
        model = versions.attempt(found, open_bundle)
        if model is not None:
            return model, candidates


async def _serve(
    model: Model,
    versions: Versions | None,
    candidates: Sequence[Found],
    *,
    host: str,
    port: int,
    token: str,
    certificate: CertificateFile | None,
    limit: int,
    wait: float,
    say: Callable[[str], None],
) -> None:
    listener = listen_on(
        host, port, backlog=BACKLOG, hint="--listen HOST:0 lets the system choose a port"
    )
    door, figures, stopping = Door(), Figures(), asyncio.Event()
    batches = Batches(model, limit=limit, wait=wait, room=_ROOM)
    watch = _Watch(versions, candidates, batches, figures, say) if versions is not None else None
    app = application(
        batches,
        token=token,
        door=door,
        figures=figures,
        problems=lambda: [] if watch is None else watch.problems,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    ending = asyncio.create_task(stopping.wait())
    background = [asyncio.create_task(watch.run())] if watch is not None else []
    context, scheme = None, "http"
    if certificate is not None:
        context, scheme = certificate.context, "https"
        background.append(asyncio.create_task(certificate.keep()))
    address = joined_address(*listener.getsockname()[:2])
    say(f"serving version {model.version} at {scheme}://{address}")
    try:
        async with answering(app, listener, door, context=context, to_end=_TO_END) as letting_in:
            await asyncio.wait([ending, letting_in], return_when=asyncio.FIRST_COMPLETED)
        if not letting_in.cancelled():
            await letting_in  # it ends by a fault alone
    finally:
        for task in (ending, *background):
            task.cancel()
        await asyncio.gather(ending, *background, return_exceptions=True)
        batches.close()


class _Watch:
    """Looks for new versions, has each take over, and says why one does not.

    Args:
        candidates: those present when the served version was chosen.

    Attributes:
        problems: versions that are not served, and why.
    """

    def __init__(
        self,
        versions: Versions,
        candidates: Sequence[Found],
        batches: Batches,
        figures: Figures,
        say: Callable[[str], None],
    ) -> None:
        self._versions, self._batches, self._figures, self._say = versions, batches, figures, say
        self._waiting: dict[Path, str] = {}
        self._passed: dict[Path, str] = {}
        self._paths_seen: set[Path] = set()  # that were there at the last look
        self._problems_said: set[tuple[str, Path]] = set()
        self._note(candidates, batches.model)

    @property
    def problems(self) -> list[str]:
        return [text for _, _, text in self._problems()]

    def _problems(self) -> Iterator[tuple[str, Path, str]]:
        kinds = {
            "refused": self._versions.problems,
            "waiting": self._waiting,
            "passed over": self._passed,
        }
        for kind, texts in kinds.items():
            for path, text in texts.items():
                yield kind, path, text

    async def run(self) -> None:
        while True:
            try:
                while await self._step():
                    pass
                self._tell()
            except BrimError as error:
                self._tell_once("directory", self._versions.directory, str(error))
            except Exception:  # noqa: BLE001 - whatever a version is, the one before is served
                _log.exception("a version could not be looked at")
            await asyncio.sleep(_POLL_INTERVAL)

    async def _step(self) -> bool:
        """Load the next version; whether there was any."""
        current = self._batches.model
        candidates = await asyncio.to_thread(self._versions.look)
        self._note(candidates, current)
        found, self._waiting = next_of(candidates, current.manifest)
        if found is None:
            return False
        open = partial(changed, current) if found.manifest.base else open_bundle
        model = await asyncio.to_thread(self._versions.attempt, found, open)
        if model is None:
            self._figures.refused += 1
            return True
        await self._batches.use(model)
        self._figures.loaded += 1
        self._say(f"version {model.version} has taken over from {current.version}")
        return True

    def _note(self, candidates: Sequence[Found], current: Model) -> None:
        """Note versions that have come, and will not be served."""
        paths = {version.path for version in candidates}
        self._passed = {path: text for path, text in self._passed.items() if path in paths}
        self._passed |= passed_over(candidates, current.manifest, self._paths_seen)
        self._paths_seen = paths

    def _tell(self) -> None:
        for kind, path, text in self._problems():
            self._tell_once(kind, path, text)

    def _tell_once(self, kind: str, path: Path, text: str) -> None:
        if (kind, path) not in self._problems_said:
            self._problems_said.add((kind, path))
            self._say(f"not served: {text}")
