"""The claims of each experiment, and whether they held. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from brim_lab.experiments.course import TrainingCourse, makespan
from brim_lab.experiments.prediction import Predicted

_OF_PREDICTION = 0.05
_TO_FIRST_STEP = 2.0
_TO_SERVE = 2.0
_USED = 0.9  # Source: ElasticDL, experiment 2
_LATENCY = 1.1  # of the slowest hundredth, to that of fixed parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One sentence, the finding, the need, and whether it holds."""

    claim: str
    got: str
    need: str
    held: bool


def error(live: float, predicted: float) -> float:
    """Return how much longer it took than was predicted, as a part of the prediction.

    >>> round(error(63.0, 60.0), 3)
    0.05
    """
    return live / predicted - 1.0


def in_all(rounds: Sequence[Sequence[Claim]]) -> list[Claim]:
    """The claims of an experiment that was repeated: each holds if it held every time.

    >>> once = Claim(claim="a step is soon made", got="1 s", need="2 s", held=True)
    >>> in_all([[once], [replace(once, got="3 s", held=False)]])
    [Claim(claim='a step is soon made', got='1 s; 3 s', need='2 s', held=False)]
    """
    return [
        replace(
            claims_of[0],
            got="; ".join(dict.fromkeys(claim.got for claim in claims_of)),
            held=all(claim.held for claim in claims_of),
        )
        for claims_of in zip(*rounds, strict=True)
    ]


def two_jobs(
    gang: Sequence[TrainingCourse],
    elastic: Sequence[TrainingCourse],
    predicted: Mapping[str, Predicted],
    calm: Mapping[str, str],
) -> list[Claim]:
    """The claims of experiment 1.

    Args:
        gang, elastic: the first job and the second.
        predicted: of `gang` and of `elastic`.
        calm: digests of the undisturbed runs, by name of the job.
    """
    spans = {"gang": makespan(gang), "elastic": makespan(elastic)}
    claims = [
        Claim(
            claim=f"the simulator predicts the makespan of {name}",
            got=f"{spans[name]:.1f} s, predicted {predicted[name].makespan:.1f} s"
            f" ({error(spans[name], predicted[name].makespan):+.1%})",
            need=f"within {_OF_PREDICTION:.0%}",
            held=abs(error(spans[name], predicted[name].makespan)) <= _OF_PREDICTION,
        )
        for name in spans
    ]
    waited = elastic[1].to_first_step
    return [
        *claims,
        Claim(
            claim="elastic is done sooner than gang",
            got=f"{error(spans['elastic'], spans['gang']):+.1%}",
            need="less time",
            held=spans["elastic"] < spans["gang"],
        ),
        Claim(
            claim="the second job's first step comes soon after its submission",
            got=f"{waited:.1f} s",
            need=f"at most {_TO_FIRST_STEP:.0f} s",
            held=waited <= _TO_FIRST_STEP,
        ),
        _same_weights([*gang, *elastic], calm),
    ]


def _same_weights(courses: Sequence[TrainingCourse], calm: Mapping[str, str]) -> Claim:
    differing = [course.name for course in courses if course.digest != calm[course.name]]
    return Claim(
        claim="the weights are those of undisturbed runs, bit for bit",
        got=f"others in {', '.join(differing)}"
        if differing
        else f"the same in {len(courses)} of {len(courses)}",
        need="the same",
        held=not differing,
    )


def beside_service(
    course: TrainingCourse,
    *,
    waited: Sequence[float],
    use: float,
    predicted: float,
    launches: int,
    calm: str,
) -> list[Claim]:
    """The claims of experiment 2.

    Args:
        waited: seconds of the service, at each rise of what it wanted.
        use: the part of the slots that was used; `predicted` is the simulator's.
        launches: how often the job was started.
        calm: the digest of an undisturbed run.
    """
    return [
        Claim(
            claim="the slots that the service leaves are used",
            got=f"{use:.1%} of all slots in use, simulated {predicted:.1%}",
            need=f"at least {_USED:.0%}",
            held=use >= _USED,
        ),
        Claim(
            claim="the service has what it wants soon",
            got=f"after {max(waited, default=0.0):.1f} s at most",
            need=f"at most {_TO_SERVE:.0f} s",
            held=max(waited, default=0.0) <= _TO_SERVE,
        ),
        Claim(
            claim="training goes on from the first step to the last",
            got=f"{launches} start(s), {course.redone} steps redone",
            need="one start, no step redone",
            held=launches == 1 and course.redone == 0,
        ),
        _same_weights([course], {course.name: calm}),
    ]


def beside_web_service(
    course: TrainingCourse,
    *,
    lost: Sequence[int],
    slowest: tuple[float, float],
    waited: Sequence[float],
    use: float,
    predicted: float,
    steps: tuple[int, int],
    launches: int,
    calm: str,
) -> list[Claim]:
    """The claims of experiment 2 with a service that answers requests.

    Args:
        lost: requests of each day.
        slowest: latency of the slowest hundredth, in seconds, with fixed parts and beside training: on one
            host training takes processor time from the service, however the slots are divided.
        waited: seconds of the service, at each rise of what it wanted.
        use: the part of the slots that was used in the day; `predicted` is the simulator's.
        steps: of a day with fixed parts, and of the day beside training.
        launches: starts of the job.
        calm: the digest of an undisturbed run.
    """
    fixed, beside = (1e3 * seconds for seconds in slowest)
    return [
        *beside_service(
            course, waited=waited, use=use, predicted=predicted, launches=launches, calm=calm
        ),
        Claim(
            claim="the simulator predicts the use of the slots",
            got=f"{use:.1%}, simulated {predicted:.1%}",
            need=f"within {_OF_PREDICTION:.0%}",
            held=abs(error(use, predicted)) <= _OF_PREDICTION,
        ),
        Claim(
            claim="no request is lost",
            got=f"{sum(lost)} lost",
            need="none",
            held=not any(lost),
        ),
        Claim(
            claim="requests are answered as soon as with fixed parts",
            got=f"99 % within {beside:.0f} ms, {fixed:.0f} ms with fixed parts",
            need=f"at most {_LATENCY:g} times as long",
            held=beside <= _LATENCY * fixed,
        ),
        Claim(
            claim="training makes more steps than with fixed parts",
            got=f"{steps[1]} in the day, {steps[0]} with fixed parts",
            need="more",
            held=steps[1] > steps[0],
        ),
    ]


def changing_workers(elastic: TrainingCourse, fixed: Sequence[TrainingCourse]) -> list[Claim]:
    """The claims of experiment 3.

    Args:
        fixed: undisturbed runs of the same job, each on a number of workers of its own.
    """
    sizes = {count for _, count in elastic.workers if count}
    changes = len(elastic.workers) - 2  # the first world and the end are none
    metrics = {course.metric for course in (elastic, *fixed)}
    return [
        Claim(
            claim="the scheduler changed the number of workers all the time",
            got=f"{changes} changes, to {len(sizes)} sizes",
            need="at least one change in each 10 s, and 3 sizes",
            held=len(sizes) >= 3 and changes >= (elastic.ended - elastic.steps[0]) / 10.0,
        ),
        Claim(
            claim="no step was done twice",
            got=f"{elastic.redone} redone",
            need="none",
            held=elastic.redone == 0,
        ),
        Claim(
            claim="the AUC after each epoch is that of the fixed runs, to the last digit",
            got=", ".join(f"{metric[-1][1]:.6f}" for metric in sorted(metrics)),
            need="one curve",
            held=len(metrics) == 1,
        ),
        _same_weights([elastic], dict.fromkeys([elastic.name], fixed[0].digest)),
        Claim(
            claim="the fixed runs agree",
            got=f"{len({course.digest for course in fixed})} digest(s)",
            need="one",
            held=len({course.digest for course in fixed}) == 1,
        ),
    ]
