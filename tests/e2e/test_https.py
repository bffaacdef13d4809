"""Clients of a host that has no disk in common with the scheduler's, and a token."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from brim_lab.chaos.hosts import Host, can_make_hosts, hosts_in
from brim_lab.driver import Driver
from e2e.running import DEADLINE, DIGITS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.netns,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun"),
]
JOB = (DIGITS, "--epochs", "2", "--global-batch-size", "128", "--workers", "2")
CLUSTER = "nodes: [{name: home, workers: 2}]\ntenants: [{name: ads, guaranteed: 2}]\n"
PORT, ADDRESS6 = 4000, "fd00::7"


class Hosts:
    """A scheduler's host, and one of a tenant."""

    def __init__(self, home: Host, away_host: Host) -> None:
        self.home, self.away = home, away_host
        self.driver = Driver(home.folder)
        self.file = home.folder / "cluster.yaml"
        self.file.write_text(CLUSTER)
        self.token = away_host.folder / "ads.token"

    def brim(self, host: Host, *words: str, code: int = 0, **variables: str) -> tuple[str, str]:
        own_variables = {"HOME": str(host.folder / "home")}
        if "BRIM_SERVER" not in variables:
            own_variables["BRIM_HOME"] = str(host.folder / "state")
        driver = self.driver.with_prefix(host.prefix)
        process = driver.start(*words, variables={**own_variables, **variables})
        output, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == code, err
        return str(output), str(err)

    def up(self, address: str, *words: str) -> str:
        _, explanation = self.brim(
            self.home, "up", "--cluster", str(self.file), "--listen", address, *words
        )
        return explanation

    def give_token(self) -> None:
        tenant_token, _ = self.brim(self.home, "token", "ads")
        self.token.unlink(missing_ok=True)
        self.token.touch(mode=0o600)
        self.token.write_text(tenant_token)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with ExitStack() as undo:
        home, away_host = undo.enter_context(hosts_in(tmp_path, 2))
        found = Hosts(home, away_host)
        undo.callback(found.driver.mark.kill)
        yield found
        found.brim(home, "down", "--kill")
        assert not found.driver.mark.left_after(20.0)


def from_away(hosts: Hosts, url: str) -> Callable[..., tuple[str, str]]:
    def brim(*words: str, code: int = 0, **variables: str) -> tuple[str, str]:
        own_variables = {"BRIM_SERVER": url, "BRIM_TOKEN_FILE": str(hosts.token)}
        return hosts.brim(hosts.away, *words, code=code, **{**own_variables, **variables})

    return brim


def test_verbs_of_another_host_work_by_https_alone(hosts: Hosts) -> None:
    url = f"https://{hosts.home.address}:{PORT}"
    assert f"brim --server {url} VERB" in hosts.up(f"{hosts.home.address}:{PORT}")
    hosts.give_token()
    brim = from_away(hosts, url)
    job = brim("submit", *JOB)[0].strip()
    ended = json.loads(brim("status", job, "--wait", "--json")[0])
    assert ended["state"] == "done"
    assert json.loads(brim("ledger", job, "--json")[0])["exact"]
    assert json.loads(brim("checkpoints", job, "--json")[0])["checkpoints"]
    assert "by ads from 10.77.0.2" in brim("explain", job)[0]
    assert job in brim("status", job, "--json", BRIM_SERVER=f"host-1:{PORT}")[0], "without a scheme"

    _, explanation = brim("jobs", code=2, BRIM_SERVER=f"http://{hosts.home.address}:{PORT}")
    assert "BRIM_INSECURE=1" in explanation
    _, explanation = brim(
        "jobs", code=1, BRIM_SERVER=f"http://{hosts.home.address}:{PORT}", BRIM_INSECURE="1"
    )
    assert "does not answer" in explanation
    secret = hosts.token.read_text().partition(".")[0]
    _, explanation = brim("jobs", code=1, BRIM_TOKEN_FILE="", BRIM_TOKEN=secret)
    assert "has no fingerprint" in explanation
    _, explanation = brim("jobs", code=1, BRIM_TOKEN_FILE="", BRIM_TOKEN=f"{secret}.{'a' * 32}")
    assert "is not what the token is for" in explanation

    # The next scheduler, from a backup in another directory, is the same one for its clients.
    hosts.brim(hosts.home, "backup", str(hosts.home.folder / "backup"))
    hosts.brim(hosts.home, "down", "--kill")
    (hosts.home.folder / "state").rename(hosts.home.folder / "lost")
    hosts.brim(hosts.home, "restore", str(hosts.home.folder / "backup"))
    hosts.up(f"{hosts.home.address}:{PORT}")
    assert job in brim("status", job, "--json")[0]


@pytest.mark.long
def test_who_wants_it_has_plain_text_and_ipv6(hosts: Hosts) -> None:
    plain = f"http://{hosts.home.address}:{PORT}"
    assert "clients of other hosts" not in hosts.up(f"0.0.0.0:{PORT}", "--insecure")
    hosts.give_token()
    brim = from_away(hosts, plain)
    assert json.loads(brim("nodes", "--json", BRIM_INSECURE="1")[0])["nodes"]
    assert "need an https:// address" in brim("nodes", code=2)[1]
    _, explanation = brim("nodes", code=1, BRIM_SERVER=f"{hosts.home.address}:{PORT}")
    assert "does not speak HTTPS" in explanation
    hosts.brim(hosts.home, "down")

    words = ("-n", hosts.home.namespace, "addr", "add", f"{ADDRESS6}/128", "dev", "lo")
    subprocess.run(["ip", *words], check=True)
    for address in (f"[{ADDRESS6}]", "[::]"):
        hosts.up(f"{address}:{PORT}")
        answer = hosts.brim(
            hosts.home,
            "nodes",
            "--json",
            BRIM_SERVER=f"https://[{ADDRESS6}]:{PORT}",
            BRIM_TOKEN=(hosts.home.folder / "state" / "token").read_text(),
        )
        assert json.loads(answer[0])["nodes"]
        if address == "[::]":
            assert json.loads(
                brim("nodes", "--json", BRIM_SERVER=f"{hosts.home.address}:{PORT}")[0]
            )["nodes"]
        else:
            hosts.brim(hosts.home, "down")
