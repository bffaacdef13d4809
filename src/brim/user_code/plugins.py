"""Finds parts of brim and of other packages by entry points: brim imports none of them by name.

`brim.verbs`: click commands. The name is the words behind `brim`, with dots between them: `chaos`,
`simulate.figures`. `brim.policies`: mappings of policies for `brim simulate`, in which each is
called NAME:ENTRY. `brim.demos`: demos for `brim demo`, see `brim.demo`. `brim.baselines`: published
policies, and `brim.kinds`: kinds of objects of Kubernetes by their names, see
`brim.kubernetes.kinds`. Both are of the distribution `brim` alone, since live schedulers run them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from brim.errors import EnvironmentFault
from brim.host.installation import command_for_laboratory

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

VERBS = "brim.verbs"
POLICIES = "brim.policies"
DEMOS = "brim.demos"
BASELINES = "brim.baselines"
KINDS = "brim.kinds"

# What the documents show, and is in a package that not everybody has installed; with the line that
# `brim --help` has for it, so that help imports no other package.
_IN_LABORATORY = {
    VERBS: {
        "chaos": "Break short runs at random and check the results.",
        "simulate.figures": "Make the figures of ElasticFlow's paper.",
    },
    POLICIES: {"as-coded": "The policies of ElasticFlow's published artifact."},
    DEMOS: {
        "experiment-1": "Two jobs that each want 5 of 8 slots: as gangs, and elastically.",
        "experiment-2": "A web service whose load rises and falls: training has what it leaves.",
        "experiment-3": "A job whose workers change all the time: the AUC does not.",
    },
}


def plugins(group: str) -> dict[str, EntryPoint]:
    """Return what is installed for one of the groups, by name, without importing it.

    No package replaces a part of brim.
    """
    from importlib.metadata import entry_points  # costs a tenth of `brim --help`, so not for all

    found = sorted(entry_points(group=group), key=lambda entry: (_is_own(entry), entry))
    return dict(sorted({entry.name: entry for entry in found}.items()))


@functools.cache
def own_plugins(group: str) -> dict[str, EntryPoint]:
    """Return those of the distribution `brim` itself, by name, without importing one."""
    return {name: entry for name, entry in plugins(group).items() if _is_own(entry)}


def package_of(plugin: EntryPoint) -> str:
    """Return the name of the package that a plug-in was installed with."""
    return plugin.dist.name if plugin.dist else plugin.module.partition(".")[0]


def _is_own(plugin: EntryPoint) -> bool:
    return package_of(plugin) == "brim"


def load_plugin(plugin: EntryPoint) -> Any:
    """Import a plug-in.

    Raises:
        EnvironmentFault: it cannot be imported; the message is one line.
    """
    try:
        return plugin.load()
    except Exception as error:  # a module may raise anything while it is imported
        reason = (str(error).splitlines() or [""])[0]
        subject = f"{plugin.name} of the package {package_of(plugin)}"
        raise EnvironmentFault(
            f"{subject} cannot be imported: {type(error).__name__}: {reason}"
        ) from error


def how_to_install(group: str, name: str) -> str:
    """Return the command that installs a plug-in which is documented; empty for any other name."""
    return command_for_laboratory() if name in _IN_LABORATORY[group] else ""


def summary_of(group: str, name: str) -> str:
    """Return a line about a plug-in that is documented; empty for any other name."""
    return _IN_LABORATORY[group].get(name, "")
