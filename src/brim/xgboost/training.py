"""`brim.xgboost.train`: rounds that all workers agree on, from a table to a Booster."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from brim.domain.quantities import counted
from brim.errors import SpecError
from brim.host.clock import monotonic
from brim.wire.reporting import progress
from brim.xgboost.arithmetic import Floats
from brim.xgboost.bins import codes_below, ranges_of, sample_of, thresholds_of
from brim.xgboost.boosting import Boosting, base_margins_of, binned, skeleton_of, typed
from brim.xgboost.grid import powers_of, round_to_grid
from brim.xgboost.launch import (
    Place,
    connected,
    library,
    next_port_of,
    place_of,
    tracker_of,
)
from brim.xgboost.metrics import is_better_above, value_of
from brim.xgboost.parameters import BoostingSettings, settings_of
from brim.xgboost.rows import Files, Rows, WorkerRows, check_size, check_weights
from brim.xgboost.sampling import chosen
from brim.xgboost.saved_rounds import SavedRounds
from brim.xgboost.trees import BoostedRound, content_of, digest_of, joined, rounds_in
from brim.xgboost.workers import BatchReport, Collectives, agree, compare, farthest

if TYPE_CHECKING:
    import xgboost

_BATCH = 0.5  # seconds of the rounds that are compared and kept at once
_MOST_IN_BATCH = 256
_MOST_ROUNDS = 1_000_000
_FORMAT = 2  # of what is kept: another one begins anew
_TERMINATED = 128 + signal.SIGTERM  # exit status of a process that was asked to end


def train(
    params: Mapping[str, Any],
    data: Rows | Files,
    rounds: int,
    *,
    evals: Sequence[tuple[Rows | Files, str]] = (),
    early_stopping_rounds: int | None = None,
    evals_result: dict[str, dict[str, list[float]]] | None = None,
) -> xgboost.Booster:
    """Train an XGBoost model whose trees are the same, bit for bit, for any number of workers.

    All processes of a command that `brim run` or `brim submit` has started call
    this with the same arguments. Rounds that count are kept in `BRIM_CHECKPOINTS`: a start after a
    death or a resize goes on behind them. Elsewhere this process trains alone. A command may train
    several models, one after another: each time all processes have another port in `MASTER_PORT`.

    Args:
        params: XGBoost's, by its names. Those that are not exact are refused.
        data: the table to train on.
        rounds: of boosting, those of earlier starts among them.
        evals: tables to compute metrics on after each round, each with a name. The metrics are
            `eval_metric` of the parameters, or the objective's.
        early_stopping_rounds: stop where the last metric of the last table has not become better for
            so many rounds; the Booster has all rounds, and `best_iteration`. None: never.
        evals_result: is filled with the metrics of all rounds, by table and name.

    Returns:
        An ordinary Booster, the same on all ranks. Its margins of the rows are those that brim has
        trained with, to the bit.

    Raises:
        SpecError: an argument that is wrong, not exact, or not the same on all workers.
        EnvironmentFault: another worker was lost, or what is kept cannot be read or written.
        SystemExit: SIGTERM came; the rounds are kept.

    Example:
        >>> import brim.xgboost
        >>> rows = brim.xgboost.Rows([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1])
        >>> booster = brim.xgboost.train({"objective": "binary:logistic"}, rows, 2)
        >>> booster.num_boosted_rounds()
        2
    """
    settings = settings_of(params)
    _check(data, rounds, evals, early_stopping_rounds)
    xgb, place = library(), place_of(os.environ)
    with tracker_of(xgb, place):
        training = _Training(xgb, place, settings, data, evals, early_stopping_rounds)
        with connected(xgb, place) as workers:
            booster: xgboost.Booster = training.work(workers, rounds)
            next_port = next_port_of(place, workers)
    if place.size > 1:
        os.environ["MASTER_PORT"] = str(next_port)
    if evals_result is not None:
        evals_result.clear()
        evals_result.update(training.results)
    return booster


class _Training:
    """One start of a training."""

    def __init__(
        self,
        xgb: Any,
        place: Place,
        settings: BoostingSettings,
        data: Rows | Files,
        evals: Sequence[tuple[Rows | Files, str]],
        patience: int | None,
    ) -> None:
        self._xgb, self._settings, self._place = xgb, settings, place
        self._patience = patience
        # Of a table and a metric, in the order of their values.
        self._columns = [(name, metric) for _, name in evals for metric in settings.metrics]
        tables = {"data": data} | {name: table for table, name in evals}
        for subject, table in tables.items():
            check_size(subject, table, place.size, is_ranked=settings.objective.ranks)
        self._subjects = list(tables)
        self._parts = [table.part_of(place.rank, place.size) for table in tables.values()]
        for subject, part in zip(tables, self._parts, strict=True):
            part.check(subject, settings.objective)
            if part.features.shape[1] != self._parts[0].features.shape[1]:
                raise SpecError(
                    subject,
                    got=f"{part.features.shape[1]} features",
                    need=f"{self._parts[0].features.shape[1]}, as in data",
                )
        self._decisive = {
            "params": settings.text,
            "xgboost": xgb.__version__,
            "early_stopping_rounds": str(patience),
            **{subject: table.identity for subject, table in tables.items()},
        }
        vocabularies = self._parts[0].vocabularies
        self._parts = [
            part.recoded(subject, vocabularies)
            for subject, part in zip(tables, self._parts, strict=True)
        ]
        self._part, *self._eval_parts = self._parts
        self._weight = _weight_of(self._part, settings)
        names, width = self._part.names, self._part.features.shape[1]
        self._skeleton = skeleton_of(xgb, settings, names, width, vocabularies)
        self._rounds: list[BoostedRound] = []
        self._history: list[tuple[float, ...]] = []

    @property
    def results(self) -> dict[str, dict[str, list[float]]]:
        """The metrics of all rounds, by table and name."""
        results: dict[str, dict[str, list[float]]] = {}
        for place, (table, metric) in enumerate(self._columns):
            results.setdefault(table, {})[metric] = [values[place] for values in self._history]
        return results

    def work(self, workers: Collectives, rounds: int) -> Any:
        """Make all rounds, and return the Booster."""
        for subject, content in {**self._decisive, "rounds": str(rounds)}.items():
            compare(subject, content, workers)
        for subject, part in zip(self._subjects, self._parts, strict=True):
            check_weights(subject, part, workers)
        self._weight = self._settings.objective.weights(self._weight, self._part.queries, workers)
        saved = self._saved()
        kept = saved.read() if saved else []
        has_most = farthest(len(kept), workers) == workers.rank
        farthest_rounds = rounds_in(workers.pass_on(content_of(kept) if has_most else b""))
        self._rounds = farthest_rounds[:rounds]
        self._history = [boosted.values for boosted in self._rounds]
        scores = self._base_scores(workers)
        boosting = self._boosting(workers, scores)
        agree(digest_of(self._rounds), workers, BatchReport())
        if saved:
            saved.catch_up(kept, farthest_rounds)
        with _termination() as request:
            self._boost(boosting, saved, workers, rounds, request)
        return self._finished(scores)

    def _boost(
        self,
        boosting: Boosting,
        saved: SavedRounds | None,
        workers: Collectives,
        rounds: int,
        request: _StopRequest,
    ) -> None:
        """Make rounds, a few at a time, which count once all workers have the same.

        All rounds that are kept, reported or returned have been compared. To compare each by itself
        would take longer than a short round.
        """
        batch = 1
        while not self._is_over(rounds):
            begin, begin_time = len(self._history), monotonic()
            while len(self._history) < begin + batch and not self._is_over(rounds):
                self._step(boosting, workers)
            self._collect(boosting)
            batch_rounds = self._rounds[begin:]
            microseconds = int((monotonic() - begin_time) * 1e6)
            report = agree(
                digest_of(batch_rounds),
                workers,
                BatchReport(is_stopping=request.has_come, microseconds=microseconds),
            )
            if saved:
                saved.write(begin, batch_rounds)
            if report.is_stopping:
                raise SystemExit(_TERMINATED)
            if workers.rank == 0:
                names = map("-".join, self._columns)
                values = dict(zip(names, self._history[-1], strict=True))
                progress(len(self._history), rounds, **values)
            batch = next_batch(batch, report.microseconds)

    def _step(self, boosting: Boosting, workers: Collectives) -> None:
        """Make a round."""
        settings, part = self._settings, self._part
        gradients, hessians = settings.objective.gradients(
            boosting.margins[0], part.label, self._weight, part.queries
        )
        if settings.subsample < 1:
            seed = settings.seed * 1_000_003 + len(self._history)
            sample = chosen(part.rows, seed, settings.subsample).astype(np.float32)
            gradients *= sample
            hessians *= sample
        columns = gradients, hessians
        for values, power in zip(columns, powers_of(columns, workers), strict=True):
            round_to_grid(values, power)
        boosting.boost(gradients, hessians)
        self._history.append(
            tuple(
                value_of(
                    name,
                    settings.objective,
                    margins,
                    rows.label,
                    rows.weight,
                    workers,
                    rows.queries,
                )
                for rows, margins in zip(self._eval_parts, boosting.margins[1:], strict=True)
                for name in settings.metrics
            )
        )

    def _collect(self, boosting: Boosting) -> None:
        """Take the trees of the rounds that were made."""
        for trees in boosting.take():
            self._rounds.append(BoostedRound(trees, self._history[len(self._rounds)]))

    def _is_over(self, rounds: int) -> bool:
        count, patience = len(self._history), self._patience
        return count >= rounds or (patience is not None and count - self._best() > patience)

    def _best(self) -> int:
        """The first round of the best metric; 0 where there is none."""
        values = [values[-1] for values in self._history]
        best = max if is_better_above(self._settings.metrics[-1]) else min
        return values.index(best(values)) if values else 0

    def _base_scores(self, workers: Collectives) -> list[float]:
        score = self._settings.base_score
        if score is not None:
            return [score] * self._settings.objective.margins
        return self._settings.objective.base_score(self._part.label, self._weight, workers)

    def _boosting(self, workers: Collectives, scores: Sequence[float]) -> Boosting:
        """Bring all rows to where the rounds have left off."""
        part, settings = self._part, self._settings
        lowest, largest = ranges_of(part.features, workers)
        sample = sample_of(part.features, part.rows, part.total, settings.seed, workers)
        thresholds = [
            codes_below(end)
            if place in part.vocabularies
            else thresholds_of(values, float(end), settings.bins)
            for place, (values, end) in enumerate(zip(sample.T, largest, strict=True))
        ]
        for place in part.vocabularies:
            lowest[place] *= 0  # the first code; NaN where all are missing
        empty = joined(self._skeleton, [], scores)
        base = base_margins_of(self._xgb, empty, part.features.shape[1])
        decided = hashlib.sha256(np.concatenate([*thresholds, lowest, *base]).tobytes()).digest()
        agree(decided, workers, BatchReport())
        boosting = Boosting(
            self._xgb,
            settings,
            binned(
                self._xgb,
                part.features,
                thresholds,
                lowest,
                settings,
                part.names,
                part.vocabularies,
            ),
            [
                self._xgb.DMatrix(
                    rows.features,
                    feature_names=list(part.names) or None,
                    nthread=settings.tree.get("nthread"),
                    **typed(part.features.shape[1], part.vocabularies),
                )
                for rows in self._eval_parts
            ],
            [np.repeat(base, len(rows.rows), axis=1) for rows in self._parts],
            begin=len(self._rounds),
        )
        boosting.restore(self._skeleton, self._rounds)
        return boosting

    def _saved(self) -> SavedRounds | None:
        """The place of rounds, by all that decides on them; None where this process keeps none."""
        if self._place.checkpoints is None:
            return None
        content = repr((_FORMAT, sorted(self._decisive.items())))
        name = "xgboost-" + hashlib.sha256(content.encode()).hexdigest()[:12]
        return SavedRounds(self._place.checkpoints / name)

    def _finished(self, scores: Sequence[float]) -> Any:
        booster = self._xgb.Booster()
        booster.load_model(joined(self._skeleton, self._rounds, scores))
        if self._patience is not None:
            best = self._best()
            booster.set_attr(best_iteration=str(best), best_score=str(self._history[best][-1]))
        return booster


def next_batch(batch: int, microseconds: int) -> int:
    """Return how many rounds to make before they are compared.

    Args:
        batch: rounds that were made last, in `microseconds` by the slowest worker: all workers
            have the same number, and so the same answer.

    >>> [next_batch(4, microseconds) for microseconds in (1_000, 500_000, 9_000_000)]
    [8, 4, 1]
    """
    fitting = int(batch * _BATCH * 1e6 / max(microseconds, 1))
    return max(min(fitting, 2 * batch, _MOST_IN_BATCH), 1)


class _StopRequest:
    """A request to end: SIGTERM has come."""

    has_come = False


@contextlib.contextmanager
def _termination() -> Iterator[_StopRequest]:
    """Note SIGTERM, and let the round in flight come to its end.

    A handler of the user's stays.
    """
    request = _StopRequest()

    def note(*_: object) -> None:
        request.has_come = True

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield request
        return
    signal.signal(signal.SIGTERM, note)
    try:
        yield request
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _weight_of(part: WorkerRows, settings: BoostingSettings) -> Floats | None:
    """The weights of rows, those of the label 1 times `scale_pos_weight`."""
    if settings.scale_pos_weight == 1.0:
        return part.weight
    factor = np.where(part.label == 1, np.float32(settings.scale_pos_weight), np.float32(1))
    return (factor if part.weight is None else factor * part.weight).astype(np.float32)


def _check(data: Any, rounds: Any, evals: Sequence[tuple[Any, str]], patience: int | None) -> None:
    if not isinstance(data, Rows | Files):
        raise SpecError(
            "data",
            got=type(data).__name__,
            need="brim.xgboost.Rows or Files",
            hint="brim.xgboost.Rows(features, label)",
        )
    if isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= _MOST_ROUNDS:
        raise SpecError(
            "rounds", got=repr(rounds), need=f"a whole number from 1 to {_MOST_ROUNDS:,}"
        )
    names = ["data"]
    for table, name in evals:
        if not isinstance(table, Rows | Files) or not isinstance(name, str) or name in names:
            raise SpecError(
                "evals",
                got=f"({type(table).__name__}, {name!r})",
                need="tables, each with a name of its own",
                hint="evals=[(brim.xgboost.Rows(features, label), 'test')]",
            )
        names.append(name)
    if patience is not None and (not evals or isinstance(patience, bool) or patience < 1):
        raise SpecError(
            "early_stopping_rounds",
            got=f"{patience!r} with {counted(len(evals), 'table')} in evals",
            need="a whole number from 1, and a table",
        )
