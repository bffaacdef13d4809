"""The table of stability names features of the code, and help texts show its marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import click
import pytest
from click.testing import CliRunner

import brim
from brim.cli.__main__ import cli
from brim.domain.stability import FEATURES, Stability, mark_of_option, mark_of_verb
from brim.kubernetes.install.manifests import foreign_definitions
from brim.kubernetes.objects.schemas import crds

ADDED_VERBS = cli.added()
OWN_VERBS = [verb for verb in cli.list_commands(click.Context(cli)) if verb not in ADDED_VERBS]


def once(names: Iterable[str]) -> set[str]:
    counts = Counter(names)
    assert set(counts.values()) <= {1}, counts
    return set(counts)


def options_of(verb: str) -> Iterator[click.Option]:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    yield from (param for param in command.params if isinstance(param, click.Option))


def test_each_verb_has_a_row() -> None:
    assert once(verb for feature in FEATURES for verb in feature.verbs) == set(OWN_VERBS)


def test_each_public_name_has_a_row() -> None:
    assert once(name for feature in FEATURES for name in feature.names) == set(brim.__all__)


def test_each_kind_of_object_has_a_row() -> None:
    definitions = [*crds().values(), *foreign_definitions()]
    kinds = {definition["spec"]["names"]["kind"] for definition in definitions}
    assert once(kind for feature in FEATURES for kind in feature.kinds) == kinds


def test_options_exist_and_show_their_marks() -> None:
    rows = once(option for feature in FEATURES for option in feature.options)
    marks = {
        option: {
            param.help.startswith(f"{mark_of_option(option)} ") for param in params if param.help
        }
        for option in rows
        if (params := [p for verb in OWN_VERBS for p in options_of(verb) if option in p.opts])
    }
    assert marks == {option: {True} for option in rows}


def test_stable_options_have_no_mark() -> None:
    for verb in OWN_VERBS:
        for param in options_of(verb):
            if not any(mark_of_option(option) for option in param.opts):
                assert not (param.help or "").startswith(("(alpha)", "(beta)"))


@pytest.mark.parametrize("verb", OWN_VERBS)
def test_help_of_a_verb_has_its_mark(verb: str) -> None:
    help_text = CliRunner().invoke(cli, [verb, "--help"]).stdout
    paragraph = " ".join(help_text.split("\n\n")[1].split())
    mark = mark_of_verb(verb)
    assert paragraph.endswith(mark or ".")
    assert ("(" in mark) == (
        verb in {v for f in FEATURES if f.stability is not Stability.STABLE for v in f.verbs}
    )


def test_list_of_verbs_fits_80_columns() -> None:
    help_text = CliRunner().invoke(cli, ["--help"], terminal_width=80).stdout
    lines = {line.split()[0]: line for line in help_text.splitlines() if line.startswith("  ")}
    for verb in OWN_VERBS:
        assert lines[verb].endswith(mark_of_verb(verb) or ".")
