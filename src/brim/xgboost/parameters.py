"""XGBoost's parameters: those that stay exact, and a refusal by name of all others. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from brim.errors import SpecError, did_you_mean
from brim.xgboost.metrics import is_of, names_for
from brim.xgboost.objectives import NAMES, Objective, objective_of
from brim.xgboost.ranking import LambdaRank

_ALIASES = {
    "learning_rate": "eta",
    "min_split_loss": "gamma",
    "reg_lambda": "lambda",
    "reg_alpha": "alpha",
    "n_jobs": "nthread",
    "random_state": "seed",
}
# They decide how a tree grows from sums that are exact, so XGBoost gets them as they are.
_OF_TREES = frozenset(
    {
        "alpha",
        "colsample_bylevel",
        "colsample_bynode",
        "colsample_bytree",
        "eta",
        "gamma",
        "grow_policy",
        "interaction_constraints",
        "lambda",
        "max_bin",
        "max_cat_threshold",
        "max_cat_to_onehot",
        "max_cached_hist_node",
        "max_delta_step",
        "max_depth",
        "max_leaves",
        "min_child_weight",
        "monotone_constraints",
        "nthread",
        "verbosity",
    }
)
_COLUMN_SAMPLES = ("colsample_bylevel", "colsample_bynode", "colsample_bytree")
_OF_BRIM = frozenset(
    {"base_score", "eval_metric", "num_class", "objective", "scale_pos_weight", "seed", "subsample"}
)
# name -> what it is left out as
_OF_RANKING: dict[str, bool | int] = {
    "lambdarank_normalization": True,
    "lambdarank_num_pair_per_sample": 32,
    "lambdarank_score_normalization": True,
    "ndcg_exp_gain": True,
}
_RANKING = ("rank:ndcg", "rank:pairwise")
_PLAIN = "plain xgboost under brim run does that, not exactly"
# name -> the values that are the same as leaving it out, what is needed, and a hint
_FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "booster": (("gbtree",), "dart and gblinear change what earlier rounds have made"),
    "device": (("cpu",), "sums of a GPU depend on how its rows are split"),
    "lambdarank_bias_norm": ((1.0,), "the bias of positions is a sum over one worker's queries"),
    "lambdarank_pair_method": (("topk",), "mean draws pairs by one worker's own chance"),
    "lambdarank_unbiased": (
        (False, 0),
        "the bias of positions is a sum over one worker's queries",
    ),
    "multi_strategy": (("one_output_per_tree",), _PLAIN),
    "num_parallel_tree": ((1,), _PLAIN),
    "process_type": (("default",), _PLAIN),
    "sampling_method": (("uniform",), "gradient_based samples by sums of one worker's rows"),
    "tree_method": (("hist", "auto"), "approx and exact take thresholds from one worker's rows"),
    "validate_parameters": ((True, False, 0, 1), "brim checks all of them"),
}
_MOST_BINS = 1 << 15  # of a feature
_MOST_CLASSES = 1 << 12
_MOST_PAIRS = 1 << 20  # of a row


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostingSettings:
    """The meaning of `params`.

    Args:
        objective_name, objective: of the trees.
        ranking: parameters of an objective that ranks.
        tree: parameters that XGBoost gets as they are.
        metrics: names, in order.
        seed: of all chance.
        subsample: share of rows in a round.
        scale_pos_weight: factor of the weight of rows whose label is 1.
        base_score: where boosting begins; None: from the labels.
        bins: of a feature, at most.
    """

    objective_name: str
    objective: Objective = field(compare=False)
    ranking: Mapping[str, bool | int]
    tree: Mapping[str, Any]
    metrics: tuple[str, ...]
    seed: int
    subsample: float
    scale_pos_weight: float
    base_score: float | None
    bins: int

    @property
    def samples_columns(self) -> bool:
        """True where chance decides on the columns of a tree."""
        return any(float(self.tree.get(name, 1)) < 1 for name in _COLUMN_SAMPLES)

    def seed_of(self, round: int) -> int:
        """Return the seed of a round, below 2**31."""
        return (self.seed * 7919 + round * 104_729 + 1) & 0x7FFFFFFF

    @property
    def text(self) -> str:
        """All that decides the trees: the same text, the same trees."""
        decisive = {k: v for k, v in self.tree.items() if k not in ("nthread", "verbosity")}
        return repr(
            (
                self.objective_name,
                self.objective.margins,
                sorted(self.ranking.items()),
                sorted(decisive.items()),
                self.metrics,
                self.seed,
                self.subsample,
                self.scale_pos_weight,
                self.base_score,
                self.bins,
            )
        )


def settings_of(params: Mapping[str, Any]) -> BoostingSettings:
    """Return the settings that XGBoost's parameters mean.

    Raises:
        SpecError: an unknown one, or one that is not exact; the message names it.
    """
    named = _by_their_names(params)
    name = named.get("objective", "reg:squarederror")
    choices = (*NAMES, *_RANKING)
    if name not in choices:
        raise SpecError(
            "objective",
            got=repr(name),
            need="one of " + ", ".join(choices),
            hint=did_you_mean(str(name), choices) if isinstance(name, str) else _PLAIN,
        )
    classes = _whole(named, "num_class", 0, 0, _MOST_CLASSES)
    ranking = _ranking(named, name)
    objective = _ranker(ranking, name) if ranking else objective_of(name, classes)
    tree = {key: value for key, value in named.items() if key in _OF_TREES}
    if name == "count:poisson":
        if named.get("max_delta_step", 0.7) != 0.7:
            raise SpecError(
                "max_delta_step",
                got=repr(named["max_delta_step"]),
                need="0.7 beside count:poisson",
                hint="leave it out",
            )
        tree["max_delta_step"] = 0.7
    return BoostingSettings(
        objective_name=name,
        objective=objective,
        ranking=ranking,
        tree=tree,
        metrics=_metrics(named.get("eval_metric"), objective, name),
        seed=_whole(named, "seed", 0, -(2**63), 2**63 - 1),
        subsample=_number(named, "subsample", 1.0, low=0.0, high=1.0),
        scale_pos_weight=_positives(named, name),
        base_score=_base_score(named, name),
        bins=_whole(named, "max_bin", 256, 2, _MOST_BINS),
    )


def _by_their_names(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters without aliases and without those that say the default."""
    if not isinstance(params, Mapping):
        raise SpecError(
            "params",
            got=type(params).__name__,
            need="a dictionary of XGBoost's parameters",
            hint="{'objective': 'binary:logistic', 'eta': 0.1}",
        )
    named: dict[str, Any] = {}
    for spelling, value in params.items():
        name = _ALIASES.get(spelling, spelling)
        if name in named:
            raise SpecError(
                name, got="two values, by two names", need="one", hint=f"without {spelling}"
            )
        if value is None:
            continue
        if name in _FIXED:
            allowed, hint = _FIXED[name]
            if value not in allowed:
                need = " or ".join(map(repr, allowed))
                raise SpecError(name, got=repr(value), need=need, hint=hint)
        elif name in _OF_TREES or name in _OF_BRIM or name in _OF_RANKING:
            named[name] = value
        else:
            names = [*_OF_TREES, *_OF_BRIM, *_OF_RANKING, *_FIXED, *_ALIASES]
            raise SpecError(
                "params",
                got=repr(spelling),
                need="a parameter that stays exact",
                hint=did_you_mean(str(spelling), names),
            )
    return named


def _ranking(named: Mapping[str, Any], objective: str) -> dict[str, bool | int]:
    """The parameters of ranking; none for another objective."""
    if objective not in _RANKING:
        for name in _OF_RANKING.keys() & named.keys():
            raise SpecError(
                name,
                got=repr(named[name]),
                need=f"none beside {objective}",
                hint="objective='rank:ndcg' ranks",
            )
        return {}
    if named.get("num_class"):
        raise SpecError("num_class", got=repr(named["num_class"]), need=f"none beside {objective}")
    found: dict[str, bool | int] = {}
    for name, default in _OF_RANKING.items():
        if isinstance(default, bool):
            value = named.get(name, default)
            if value not in (False, True):  # 0 and 1 as well
                raise SpecError(name, got=repr(value), need="True or False")
            found[name] = bool(value)
        else:
            found[name] = _whole(named, name, default, 1, _MOST_PAIRS)
    return found


def _ranker(ranking: Mapping[str, bool | int], objective: str) -> LambdaRank:
    return LambdaRank(
        weighs_by_ndcg=objective == "rank:ndcg",
        top=int(ranking["lambdarank_num_pair_per_sample"]),
        normalizes=bool(ranking["lambdarank_normalization"]),
        by_scores=bool(ranking["lambdarank_score_normalization"]),
        has_exponential_gain=bool(ranking["ndcg_exp_gain"]),
    )


def _metrics(value: Any, objective: Objective, objective_name: str) -> tuple[str, ...]:
    choices = names_for(objective, objective_name)
    if value is None:
        return choices[:1]
    names = (value,) if isinstance(value, str) else value
    for name in names if isinstance(names, Sequence) else (names,):
        if not is_of(name, objective, objective_name):
            raise SpecError(
                "eval_metric",
                got=repr(name),
                need=f"one that is exact, for {objective_name}: " + ", ".join(choices),
                hint="any other from the Booster's predictions, after training",
            )
    return tuple(dict.fromkeys(names))


def _base_score(named: Mapping[str, Any], objective: str) -> float | None:
    if named.get("base_score") is None:
        return None
    if "logistic" in objective:
        return _number(named, "base_score", 0.5, low=0.0, high=1.0, open_end=True)
    low = 0.0 if objective == "count:poisson" else -math.inf
    return _number(named, "base_score", 0.5, low=low, high=math.inf, open_end=True)


def _positives(named: Mapping[str, Any], objective: str) -> float:
    factor = _number(named, "scale_pos_weight", 1.0, low=0.0, high=1e6)
    if factor != 1.0 and "logistic" not in objective:
        raise SpecError(
            "scale_pos_weight",
            got=repr(factor),
            need=f"1 beside {objective}",
            hint="weights of rows: Rows(…, weight=…)",
        )
    return factor


def _number(
    named: Mapping[str, Any],
    name: str,
    default: float,
    *,
    low: float,
    high: float,
    open_end: bool = False,
) -> float:
    value = named.get(name, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    is_within = low < number < high if open_end else low < number <= high
    if not is_within:
        end = "below" if open_end else "to"
        raise SpecError(name, got=repr(value), need=f"a number above {low:g}, {end} {high:g}")
    return number


def _whole(named: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = named.get(name, default)
    is_whole = (
        not isinstance(value, bool) and isinstance(value, int | float) and value == int(value)
    )
    if not is_whole or not low <= value <= high:
        raise SpecError(name, got=repr(value), need=f"a whole number from {low} to {high}")
    return int(value)
