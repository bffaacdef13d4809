"""Plug-ins of other packages are found, and one that is broken or missing breaks nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from brim.cli.__main__ import cli
from brim.errors import SpecError
from brim.host.installation import command_for_laboratory
from brim.scheduler.cluster_file import cluster_spec
from brim.user_code import plugins

MODULE = """
import click
from brim.domain.schedule import Decision
from brim.policies.baselines.edf import admit_all, edf

@click.command()
def greet():
    "Greet the caller."
    click.echo("hello")

def greedy(snapshot):
    return Decision(
        workers={state.job.id: snapshot.capacity for state in snapshot.jobs},
        verdicts=admit_all(snapshot),
    )

POLICIES = {"edf": edf, "greedy": greedy}
"""
ENTRY_POINTS = """
[brim.verbs]
greet = acme_module:greet
broken = acme_module_that_is_not_there:verb
odd = acme_module:POLICIES
simulate.greet = acme_module:greet
simulate.replay = acme_module:greet
train = acme_module:greet

[brim.baselines]
edf = acme_module:greedy
greedy = acme_module:greedy

[brim.policies]
acme = acme_module:POLICIES
torn = acme_module_that_is_not_there:POLICIES

[brim.demos]
torn-demo = acme_module_that_is_not_there:DEMO
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that adds verbs and policies, as if it had been installed."""
    metadata = tmp_path / "acme-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "acme_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("acme_module", None)


@pytest.fixture
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no other package were installed."""
    for module in ("brim.cli.shared.open_group", "brim.cli.demo", "brim.simulator.compare"):
        __import__(module)
        monkeypatch.setattr(f"{module}.plugins", lambda group: {})


def invoked(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


@pytest.mark.usefixtures("acme")
def test_plugin_verbs_are_verbs_of_brim() -> None:
    assert invoked("greet").stdout == "hello\n"
    assert invoked("help", "greet").stdout == invoked("greet", "--help").stdout
    assert invoked("simulate", "greet").stdout == "hello\n"
    listing = invoked("--help").stdout.partition("\nFrom the package acme:\n")[2]
    assert [line.split()[0] for line in listing.split("\n\n")[0].splitlines()] == [
        "broken",
        "greet",
        "odd",
    ]
    assert "did you mean 'greet'?" in invoked("gret").stderr


@pytest.mark.usefixtures("acme")
def test_a_verb_of_brims_own_is_nobody_elses() -> None:
    assert invoked("train", "--help").stdout.startswith("Usage: brim train [OPTIONS] FILE")
    assert invoked("--help").stdout.count("\n  train ") == 1


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["broken"], "broken of the package acme cannot be imported: ModuleNotFoundError: "),
        (["broken", "--json", "x"], "broken of the package acme cannot be imported: "),
        (["odd"], "acme_module:POLICIES is no click command"),
        (["simulate", "--policy", "edf:torn"], "torn of the package acme cannot be imported: "),
        (["demo", "torn-demo"], "torn-demo of the package acme cannot be imported: "),
    ],
)
def test_import_failures_are_explained_in_one_line(words: list[str], message: str) -> None:
    result = invoked(*words)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"brim: {message}")


@pytest.mark.usefixtures("acme")
def test_what_cannot_be_imported_breaks_no_other() -> None:
    for words, message in (
        (("simulate", "policies"), "edf:acme"),
        (("demo",), "first-job"),
    ):
        result = invoked(*words)
        assert result.exit_code == 0
        assert message in result.stdout
        (line,) = result.stderr.splitlines()
        assert "cannot be imported" in line
    assert invoked("--help").exit_code == 0
    assert invoked("simulate", "--help").exit_code == 0


@pytest.mark.usefixtures("acme")
def test_plugin_policies_are_compared_and_checked(tmp_path: Path) -> None:
    result = invoked("simulate", "--policy", "edf,edf:acme", "--json")
    found = json.loads(result.stdout)["policies"]
    results = [{k: v for k, v in found[name].items() if k != "cpu_seconds"} for name in found]
    assert list(found) == ["edf", "edf:acme"]
    assert results[0] == results[1]
    wrong = invoked("simulate", "--policy", "greedy:acme")
    assert wrong.exit_code == 2
    assert "--policy greedy:acme: got" in wrong.stderr


@pytest.mark.usefixtures("no_plugins")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["chaos", "job.py"], "brim: got 'chaos', need the package that has it"),
        (["simulate", "figures"], "brim simulate: got 'figures', need the package that has it"),
        (
            ["simulate", "--policy", "edf:as-coded"],
            "--policy: got 'edf:as-coded', need the package that has :as-coded",
        ),
        (["demo", "experiment-1"], "NAME: got 'experiment-1', need the package that has it"),
    ],
)
def test_what_is_not_installed_says_what_to_install(words: list[str], message: str) -> None:
    result = invoked(*words)
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [message, f"  hint: {command_for_laboratory()}"]


@pytest.mark.usefixtures("no_plugins")
def test_brim_needs_no_other_package() -> None:
    assert invoked("--help").stdout.count("From the package") == 0
    assert json.loads(invoked("demo", "--json").stdout) == {"demos": ["first-job"]}
    assert ":" not in invoked("simulate", "policies").stdout


def test_brim_imports_the_laboratory_only_on_demand() -> None:
    program = (
        "import sys, atexit; atexit.register(lambda: print('brim_lab' in sys.modules));"
        " import brim.cli.__main__ as m; m.cli.main(['--help'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "False", done.stderr
    assert "chaos" in plugins.plugins(plugins.VERBS)


def test_published_policies_are_imported_on_demand() -> None:
    program = (
        "import sys; from brim.user_code.policies import POLICIES; names = list(POLICIES);"
        " before = 'brim.policies.baselines.edf' in sys.modules; POLICIES['edf'];"
        " print(*names, before, 'brim.policies.baselines.edf' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    published = (
        "chronus edf edf-admission elasticflow fifo-gang gandiva gavel gavel-finish-time "
        "gavel-makespan lyra pollux sia themis tiresias"
    )
    assert done.stdout == f"brim {published} False True\n", done.stderr


@pytest.mark.usefixtures("acme")
def test_a_scheduler_knows_no_policy_of_another_package() -> None:
    policies = plugins.own_plugins.__wrapped__(plugins.BASELINES)
    assert "greedy" not in policies
    assert policies["edf"].module == "brim.policies.baselines.edf"


@pytest.mark.usefixtures("acme")
def test_no_package_replaces_a_part_of_brim() -> None:
    assert plugins.plugins(plugins.VERBS)["simulate.replay"].module == "brim.cli.replay"


@pytest.mark.parametrize("policy", ["chronus", "lyra", "sia"])
def test_missing_solver_is_named_before_anything_starts(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.user_code.policies.importlib.util.find_spec", lambda _: None)
    with pytest.raises(SpecError, match="highspy") as refused:
        cluster_spec({"policy": policy, "nodes": [{"name": "n1", "workers": 1}]})
    assert "[simulate]" in refused.value.hint
    shown = CliRunner().invoke(cli, ["simulate", "--policy", policy])
    assert shown.exit_code == 2
    assert "highspy" in shown.output
