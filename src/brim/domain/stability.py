"""The stability of brim's features: one table for help texts, the documents and the tests.

Pure: values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Stability(StrEnum):
    """The promise that a feature carries for later versions."""

    STABLE = "stable"
    BETA = "beta"
    ALPHA = "alpha"

    def mark(self) -> str:
        """Return the mark in help texts; empty for a stable feature."""
        return "" if self is Stability.STABLE else f"({self})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature and everything through which it is used.

    Args:
        name: in the documents.
        verbs: of the command line.
        options: those that belong to this feature rather than to that of their verb.
        kinds: of Kubernetes objects.
        names: of `import brim`.
        note: the reason, or the dependency, behind the stability.
    """

    name: str
    stability: Stability
    verbs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    note: str = ""


FEATURES = (
    Feature(
        name="training files and your own loop",
        stability=Stability.STABLE,
        verbs=("train", "run", "resume", "status", "logs", "resize", "suspend", "help"),
        names=("__version__", "Run", "data", "join", "metrics", "param", "run", "train", "weights_sha256"),
    ),
    Feature(
        name="stacks of workers",
        stability=Stability.ALPHA,
        verbs=("stacks",),
    ),
    Feature(
        name="captured steps",
        stability=Stability.ALPHA,
        options=("--capture",),
        note="runs in TorchScript's interpreter, by functions that are private to torch",
    ),
    Feature(
        name="any command, started again at each change",
        stability=Stability.ALPHA,
        options=("--restart", "--per", "--grace", "--progress", "--tty"),
        names=("progress", "stopping"),
    ),
    Feature(
        name="online services as jobs",
        stability=Stability.ALPHA,
        verbs=("restart",),
        options=("--service",),
    ),
    Feature(
        name="jobs behind others, at a time, in arrays",
        stability=Stability.ALPHA,
        options=("--after", "--at", "--array", "--retries"),
    ),
    Feature(
        name="metrics of a scheduler (`/metrics`)",
        stability=Stability.ALPHA,
        note="names of metrics may change",
    ),
    Feature(
        name="usage by month",
        stability=Stability.ALPHA,
        verbs=("usage",),
    ),
    Feature(
        name="fair share over time (`usage_half_life`)",
        stability=Stability.ALPHA,
        options=("--usage-half-life",),
    ),
    Feature(
        name="notifications by webhook, mail and command",
        stability=Stability.ALPHA,
        options=("--notify",),
    ),
    Feature(
        name="hosts that leave by notice",
        stability=Stability.ALPHA,
        options=("--notice",),
    ),
    Feature(
        name="XGBoost, exact for any number of workers",
        stability=Stability.ALPHA,
        names=("xgboost",),
        note="another version of brim or xgboost may make other trees, and starts from scratch",
    ),
    Feature(
        name="records of a run",
        stability=Stability.STABLE,
        verbs=("report", "track", "checkpoints", "ledger"),
    ),
    Feature(
        name="use of a trained model",
        stability=Stability.STABLE,
        verbs=("evaluate", "predict", "export"),
    ),
    Feature(
        name="runs on several hosts",
        stability=Stability.STABLE,
        verbs=("agent",),
    ),
    Feature(
        name="a scheduler, its jobs and tenants",
        stability=Stability.STABLE,
        verbs=(
            "up", "down", "submit", "jobs", "explain", "cancel", "forget", "tenants", "token", "nodes",
            "drain", "apply", "backup", "restore",
        ),
        names=("Client", "submit"),
        note="every later version reads the database",
    ),
    Feature(
        name="the cluster as a page in a browser",
        stability=Stability.ALPHA,
        verbs=("dashboard",),
        note="tried with NiceGUI 3.18",
    ),
    Feature(
        name="the cluster on a terminal",
        stability=Stability.ALPHA,
        verbs=("top",),
        note="keys and layout may change",
    ),
    Feature(
        name="simulation, replay and demos",
        stability=Stability.STABLE,
        verbs=("simulate", "demo"),
        note="what `--from` assumes of logs may change",
    ),
    Feature(
        name="Lightning, and models for click-through rates",
        stability=Stability.BETA,
        names=("lightning", "models"),
    ),
    Feature(
        name="transformers' Trainer, exact",
        stability=Stability.ALPHA,
        names=("transformers",),
        note="tried with transformers 5.23 and 5.24",
    ),
    Feature(
        name="Keras models on the torch backend",
        stability=Stability.ALPHA,
        names=("keras",),
    ),
    Feature(
        name="embeddings with ids from a large space",
        stability=Stability.BETA,
        options=("--delay",),
        names=("Embedding",),
    ),
    Feature(
        name="parameter servers",
        stability=Stability.BETA,
        options=("--ps",),
    ),
    Feature(
        name="asynchronous training",
        stability=Stability.ALPHA,
        options=("--async",),
        note="the result depends on timing",
    ),
    Feature(
        name="serving",
        stability=Stability.BETA,
        verbs=("serve",),
    ),
    Feature(
        name="masters that move to another host",
        stability=Stability.BETA,
        verbs=("master",),
    ),
    Feature(
        name="runs kept in a store",
        stability=Stability.BETA,
        options=("--runs",),
    ),
    Feature(
        name="hosts that join a scheduler",
        stability=Stability.BETA,
        verbs=("node",),
        options=("--nodes",),
    ),
    Feature(
        name="Kubernetes",
        stability=Stability.BETA,
        verbs=("install", "operator"),
        options=("--to", "--processes-per-worker"),
        kinds=("ElasticJob", "Tenant"),
        note="the kinds are `brim.dev/v1alpha1`",
    ),
    Feature(
        name="Kubeflow's kinds",
        stability=Stability.BETA,
        options=("--kubeflow",),
        kinds=("PyTorchJob", "TFJob", "MPIJob"),
        note="`kubeflow.org/v1`, which Kubeflow develops no further; `MPIJob` of `v2beta1`, too",
    ),
    Feature(
        name="TrainJobs of Kubeflow Trainer",
        stability=Stability.ALPHA,
        verbs=("pod",),
        note="`trainer.kubeflow.org/v1alpha1`; tried with Trainer 2.2 and 2.3",
    ),
    Feature(
        name="nodes chosen by another scheduler",
        stability=Stability.ALPHA,
        options=("--mode",),
    ),
    Feature(
        name="gangs",
        stability=Stability.ALPHA,
        options=("--gang", "--gangs"),
        note="needs the feature gate `GenericWorkload` of Kubernetes 1.37, or Volcano",
    ),
    Feature(
        name="evictions",
        stability=Stability.ALPHA,
        options=("--evictions",),
        note="needs the API `lifecycle.k8s.io/v1alpha1` of Kubernetes 1.37, off by default",
    ),
    Feature(
        name="placeholders for a cluster autoscaler",
        stability=Stability.ALPHA,
        options=("--placeholders",),
    ),
    Feature(
        name="services on Kubernetes, scaled by foresight",
        stability=Stability.ALPHA,
        options=("--service-url",),
    ),
)  # fmt: skip

_OF_VERBS = {verb: feature.stability for feature in FEATURES for verb in feature.verbs}
_OF_OPTIONS = {option: feature.stability for feature in FEATURES for option in feature.options}


def mark_of_verb(verb: str) -> str:
    """Return the mark of a verb of brim; empty for a stable verb and for another package's."""
    return _OF_VERBS.get(verb, Stability.STABLE).mark()


def mark_of_option(flag: str) -> str:
    """Return the mark of an option such as `--async`; empty if it is as stable as its verb."""
    return _OF_OPTIONS.get(flag, Stability.STABLE).mark()
