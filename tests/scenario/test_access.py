"""A cluster under TLS and tokens: the plan waits, a viewer is refused, an operator follows the link of the alert, the job heals."""

import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from eagle_eye.access import Role
from eagle_eye.access.certificates import CertificateKind
from eagle_eye.access.tokens import VARIABLE, add_person
from eagle_eye.app import drills
from eagle_eye.app.cli import main
from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.clock import SystemClock
from eagle_eye.ports import free_port
from fakes.tls_credentials import credential_issuer
from servers.pager import SECRET, Pager

LOOP = Path(__file__).with_name("loop.py")
DEADLINE_S = 150.0
NODES = ("node-a", "node-b")
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = "127.0.0.1:{http}"
lease_s = 1.5

[access]
ca_file = "{certs}/ca.pem"
certificate_file = "{certs}/out/{node}.pem"
key_file = "{certs}/out/{node}.key"

[engine]
mode = "recommend"

[[actions.notify.receivers]]
kind = "plain"
name = "pager"
url = "{pager}"
secret_file = "{certs}/pager.secret"
"""


@pytest.fixture
def pager(tmp_path: Path) -> Iterator[Pager]:
    made = Pager(tmp_path / "pager", "plain", free_port())
    made.start()
    yield made
    made.stop()


@pytest.fixture
def demo_job(pager: Pager) -> Iterator[DemoJob]:
    with tempfile.TemporaryDirectory(prefix="access") as folder:  # short: paths of unix sockets are limited
        home = Path(folder)
        ours = credential_issuer(home / "certs")
        ours.issue(socket.gethostname(), CertificateKind.SERVER)
        for node in NODES:
            ours.issue(node, CertificateKind.NODE)
        secret = home / "certs" / "pager.secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        values = {"http": str(free_port()), "certs": str(home / "certs"), "pager": pager.url}
        config = re.sub(r"\{(http|certs|pager)\}", lambda found: values[found[1]], CONFIG)
        made = DemoJob(
            folder=home, config=config, command=(sys.executable, str(LOOP)), job="test/loop", nodes=NODES, heal="none", clock=SystemClock(),
            launch=("--nnodes", str(len(NODES))),  # nobody may join later a job that does not heal itself
        )
        try:
            yield made
        finally:
            made.stop()


def cli(demo_job: DemoJob, token: str, *words: str) -> Result:
    arguments = [*words, "--config", str(demo_job.folder / "eagle-eye.toml"), "--state-dir", str(demo_job.cluster.state_dir)]
    return CliRunner(env={VARIABLE: token}).invoke(main, arguments)


def told(demo_job: DemoJob) -> str:
    return "\n".join(f"--- {name}\n{demo_job.cluster.tail(name, 30)}" for name in ("server", *(f"{role}-{node}" for node in NODES for role in ("launcher", "agent"))))


def wait(demo_job: DemoJob, what: str, condition) -> None:
    assert demo_job.wait(condition, DEADLINE_S), f"waited {DEADLINE_S:g} s for: {what}\n{told(demo_job)}"


def test_an_operator_approves_by_the_link_of_an_alert_and_nobody_else_does(demo_job: DemoJob, pager: Pager) -> None:
    now = demo_job.clock.now()
    path = demo_job.folder / "state" / "tokens" / "tokens.toml"
    viewer, operator = (add_person(path, name, role, now=now) for name, role in (("eve", Role.VIEWER), ("ada", Role.OPERATOR)))
    demo_job.start()
    wait(demo_job, "a healthy job under TLS", demo_job.full)
    wait(demo_job, "a leader, without which this job ends with its worker", lambda: "leading in term" in demo_job.cluster.tail("server"))
    drills.ON_WORKER["kill"](demo_job.workers()[0], demo_job.clock)
    links = lambda: [body["approval_link"] for body in pager.bodies if body["approval_link"]]  # noqa: E731
    wait(demo_job, "the alert with its link", lambda: bool(links()))

    refused = cli(demo_job, viewer, "approve", "--yes")
    assert refused.exit_code == 1
    assert "digest" in refused.output, "a viewer sees the plan"
    assert "eve has the role viewer: approve needs the role operator" in refused.output
    assert "the request has no token" in cli(demo_job, "", "approve", "--yes").output
    [link] = set(links())
    seen = httpx.get(link)
    digest = re.search(r'name="digest" value="(\w+)"', seen.text)
    assert digest, seen.text
    form = {"decision": "approve", "digest": digest[1]}
    assert httpx.post(link, data=form | {"token": viewer}).status_code == 403
    assert demo_job.record.trace.layout.epoch == 1, "nothing was done so far"

    approved = httpx.post(link, data=form | {"token": operator})
    assert (approved.status_code, "approved by ada" in approved.text) == (200, True)
    assert httpx.post(link, data=form | {"token": operator}).status_code == 410
    wait(demo_job, "the job to go on", lambda: demo_job.record.trace.layout.epoch == 2 and demo_job.full())
    assert "ada approved" in cli(demo_job, viewer, "incidents", demo_job.record.kept[-1].incident.id).output
    assert operator not in told(demo_job)
