"""Certificates: what the small authority makes, and what is refused before anything listens or connects."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from eagle_eye.access import Tokens
from eagle_eye.access.certificate_authority import CertificateAuthority
from eagle_eye.access.certificates import CertificateKind, Identity, certificate_info
from eagle_eye.access.credentials import Credentials, identity_of, node_credentials, objection
from eagle_eye.app.cli import main
from eagle_eye.app.serving.server_process import check_access
from eagle_eye.clock import FakeClock, SystemClock
from eagle_eye.config import AccessConfig, Config, ServerConfig
from eagle_eye.errors import ConfigError, ControlError
from fakes.tls_credentials import DAY_S, CredentialIssuer, credential_issuer

SERVER, NODE, CLIENT = CertificateKind.SERVER, CertificateKind.NODE, CertificateKind.CLIENT


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def ours(tmp_path: Path, clock: FakeClock) -> CredentialIssuer:
    return credential_issuer(tmp_path / "certs", clock)


def test_a_certificate_says_who_it_is_for_where_and_how_long(ours, clock):
    access = ours.issue("node-7", NODE, "10.0.0.7", "node-7.cluster", days=30)
    facts = certificate_info(Path(access.certificate_file).read_bytes(), "node-7.pem")
    assert facts.identity == Identity(kind=NODE, name="node-7")
    assert {"10.0.0.7", "node-7.cluster", "localhost", "127.0.0.1"} <= set(facts.hosts)
    assert facts.ends == pytest.approx(clock.now() + 30 * DAY_S, abs=1)
    assert facts.begins < clock.now()
    assert not facts.authority


def test_a_node_s_certificate_may_be_limited_to_tenants(ours, clock):
    made = ours.authority.issue(Identity(kind=NODE, name="n", tenants=("team-a", "équipe")), (), now=clock.now(), days=1, out=ours.folder)
    found = certificate_info(made.certificate.read_bytes(), "n.pem").identity
    assert found == Identity(kind=NODE, name="n", tenants=("team-a", "équipe"))
    assert [found.speaks_for(job) for job in ("team-a/gpt/1", "équipe/gpt/1", "team-ab/gpt/1", "team/gpt/1", "")] == [True, True, False, False, False]
    with pytest.raises(ConfigError, match="--tenant 'team-a/gpt'"):
        ours.authority.issue(Identity(kind=NODE, name="n", tenants=("team-a/gpt",)), (), now=clock.now(), days=1, out=ours.folder)


def test_twin_a_certificate_without_tenants_speaks_for_all():
    assert Identity(kind=NODE, name="n").speaks_for("anybody/gpt/1")


@pytest.mark.parametrize("limit", ["eagle-eye://tenant/", "eagle-eye://tenant/%2", "eagle-eye://tenant/a/b"])
def test_a_limit_that_cannot_be_read_is_not_taken_for_none(limit):
    found = Identity.of_all(["eagle-eye://node/n", limit])
    assert found is not None
    assert not found.speaks_for("a/gpt/1")


def test_tenants_limit_a_node_and_nobody_else(ours, tmp_path):
    issue = lambda *words: CliRunner().invoke(main, ["certs", "issue", *words, "--dir", str(ours.folder), "--state-dir", str(tmp_path)])  # noqa: E731
    assert "goes with --kind node" in issue("ada", "--kind", "client", "--tenant", "team-a").output
    assert issue("node-7", "--kind", "node", "--tenant", "team-a", "--tenant", "team-b").exit_code == 0
    shown = CliRunner().invoke(main, ["certs", "show", "--wide", "--dir", str(ours.folder), "--state-dir", str(tmp_path)]).output
    assert "node node-7 (of team-a, team-b)" in shown


def test_a_person_s_certificate_is_for_no_host(ours):
    access = ours.issue("ada", CLIENT)
    assert certificate_info(Path(access.certificate_file).read_bytes(), "ada.pem").hosts == ()


def test_every_file_is_for_its_owner_alone(ours):
    ours.issue("head", SERVER)
    assert {path.stat().st_mode & 0o777 for path in ours.folder.rglob("*") if path.is_file()} == {0o600}


def test_an_authority_is_not_made_twice(ours, clock):
    with pytest.raises(ConfigError, match="already"):
        CertificateAuthority(ours.folder).make(clock.now())


def test_without_an_authority_nothing_is_issued(tmp_path, clock):
    with pytest.raises(ConfigError, match="certs init"):
        CertificateAuthority(tmp_path).issue(Identity(kind=NODE, name="n"), (), now=clock.now(), days=1, out=tmp_path)


@pytest.mark.parametrize(("name", "hosts", "days", "words"), [
    ("../n", (), 1, "not usable as a name"), ("n", ("no host!",), 1, "neither a host name nor an address"), ("n", (), 36500, "fewer with --days"),
])  # fmt: skip
def test_what_cannot_be_issued_is_told(ours, clock, name, hosts, days, words):
    with pytest.raises(ConfigError, match=words):
        ours.authority.issue(Identity(kind=NODE, name=name), hosts, now=clock.now(), days=days, out=ours.folder)


# --- our own files ---------------------------------------------------------------------------------------------------


def test_three_files_or_none():
    assert Credentials.of(AccessConfig()) is None
    with pytest.raises(ConfigError, match=r"nothing is set for access\.key_file"):
        Credentials.of(AccessConfig(ca_file="a", certificate_file="b"))


def test_good_files_are_good(ours, clock):
    assert Credentials.of(ours.issue("n", NODE), clock).check().identity == Identity(kind=NODE, name="n")


def test_all_nodes_may_share_one_configuration(ours, clock):
    for node in ("node-a", "node-b"):
        ours.issue(node, NODE)
    access = ours.issue("node-c", NODE)
    shared = msgspec.structs.replace(
        access, **{name: getattr(access, name).replace("node-c", "{node}") for name in ("certificate_file", "key_file")}
    )
    for node in ("node-a", "node-b"):
        assert node_credentials(shared, node, clock).check().identity.name == node


def test_a_key_that_others_may_read_is_refused(ours, clock):
    access = ours.issue("n", NODE)
    Path(access.key_file).chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        Credentials.of(access, clock).check()


def test_a_key_of_another_certificate_is_refused(ours, clock):
    mixed = msgspec.structs.replace(ours.issue("n", NODE), key_file=ours.issue("m", NODE).key_file)
    with pytest.raises(ConfigError, match="is not the key of"):
        Credentials.of(mixed, clock).check()


def test_a_certificate_of_another_authority_is_refused(ours, clock, tmp_path):
    foreign = credential_issuer(tmp_path / "foreign", clock).issue("n", NODE)
    mixed = msgspec.structs.replace(foreign, ca_file=ours.issue("n", NODE).ca_file)
    with pytest.raises(ConfigError, match="was not signed by"):
        Credentials.of(mixed, clock).check()


@pytest.mark.parametrize(("field", "words"), [("certificate_file", "holds no certificate"), ("key_file", "holds no private key"), ("ca_file", "holds no certificate")])
def test_nonsense_in_a_file_is_named_and_not_shown(ours, clock, field, words):
    access = ours.issue("n", NODE)
    Path(getattr(access, field)).write_text("my secret")
    with pytest.raises(ConfigError, match=words) as raised:
        Credentials.of(access, clock).check()
    assert "my secret" not in str(raised.value)


def test_a_certificate_that_ends_soon_is_told_once_a_day_and_an_expired_one_is_of_no_use(ours, clock, caplog):
    credentials = Credentials.of(ours.issue("n", NODE, days=100), clock)
    credentials.check()
    assert caplog.records == []
    clock.advance(76 * DAY_S)
    credentials.check()
    credentials.check()
    assert len([record for record in caplog.records if "expires on" in record.message]) == 1
    clock.advance(25 * DAY_S)
    with pytest.raises(ConfigError, match=r"expired on .* renew it with `eagle-eye certs issue`"):
        credentials.check()


def test_a_connection_that_lasts_is_reminded_of_the_end(ours, clock, caplog):
    credentials = Credentials.of(ours.issue("n", NODE, days=100), clock)
    for _ in range(101):
        clock.advance(DAY_S)
        credentials.remind()
        credentials.remind()
    assert len([record for record in caplog.records if "expires on" in record.message]) == 25
    assert len([record for record in caplog.records if "no new connection can be made" in record.message]) == 2


def test_a_renewed_certificate_is_read_again(ours, clock):
    credentials = Credentials.of(ours.issue("n", NODE, days=100), clock)
    before = credentials.check().ends
    clock.advance(50 * DAY_S)
    ours.issue("n", NODE, days=100)
    assert credentials.check().ends > before


# --- who may be whom -------------------------------------------------------------------------------------------------


def test_a_session_is_opened_by_its_own_node_alone():
    assert objection(Identity(kind=NODE, name="node-a"), "node-a", "agent on node-a") == ""
    assert "node node-b may not speak as the agent on node-a" in objection(Identity(kind=NODE, name="node-b"), "node-a", "agent on node-a")
    assert "client ada may not speak" in objection(Identity(kind=CLIENT, name="ada"), "node-a", "agent on node-a")
    assert "server node-a may not speak" in objection(Identity(kind=SERVER, name="node-a"), "node-a", "agent on node-a")
    assert "names no node" in objection(None, "node-a", "agent on node-a")


@pytest.mark.parametrize("uri", ["eagle-eye://node/a/b", "eagle-eye://king/a", "https://node/a", "eagle-eye://node/", "x eagle-eye://node/a"])
def test_other_uris_name_nobody(uri):
    assert Identity.of_all([uri]) is None


def test_the_common_name_alone_names_nobody():
    assert identity_of({"x509_common_name": [b"node-a"], "x509_subject_alternative_name": [b"eagle-eye://node/node-a"]}) is None
    assert identity_of({"peer_uri": [b"eagle-eye://node/node-a"], "x509_pem_cert": [b"no certificate"]}) is None


def test_a_node_learns_at_its_start_that_its_certificate_is_another_s(ours, clock):
    assert node_credentials(AccessConfig(), "node-a", clock) is None
    with pytest.raises(ConfigError, match="certs issue node-a --kind node"):
        node_credentials(ours.issue("node-b", NODE), "node-a", clock)


def test_a_launcher_learns_at_its_start_that_its_node_may_not_run_the_job(ours, clock):
    access = ours.issue("node-a", NODE)
    ours.authority.issue(Identity(kind=NODE, name="node-a", tenants=("team-a",)), (), now=clock.now(), days=1, out=ours.folder / "out")
    assert node_credentials(access, "node-a", clock, "team-a/gpt/1") is not None
    with pytest.raises(ConfigError, match="issue it with --tenant team-b"):
        node_credentials(access, "node-a", clock, "team-b/gpt/1")


# --- what may listen -------------------------------------------------------------------------------------------------


def test_a_server_beyond_loopback_needs_certificates_or_is_told_otherwise(ours, clock, tmp_path):
    state = str(tmp_path)
    with pytest.raises(ControlError, match="anybody there could command jobs"):
        check_access(Config(state_dir=state), "0.0.0.0:7467", clock)
    check_access(Config(state_dir=state), "127.0.0.1:7467", clock)
    check_access(Config(state_dir=state, server=ServerConfig(insecure=True)), "0.0.0.0:7467", clock)
    check_access(Config(state_dir=state, access=ours.issue("head", SERVER)), "0.0.0.0:7467", clock)


def test_a_server_does_not_start_with_files_that_let_nobody_in(ours, clock, tmp_path):
    with pytest.raises(ConfigError, match="certificate of a client ada"):
        check_access(Config(state_dir=str(tmp_path), access=ours.issue("ada", CLIENT)), "127.0.0.1:0", clock)
    access = ours.issue("head", SERVER, days=1)
    clock.advance(2 * DAY_S)
    with pytest.raises(ConfigError, match="expired on"):
        check_access(Config(state_dir=str(tmp_path), access=access), "127.0.0.1:0", clock)


# --- the commands ----------------------------------------------------------------------------------------------------


def command(tmp_path: Path, *words: str) -> str:
    done = CliRunner().invoke(main, [*words, "--state-dir", str(tmp_path)])
    return done.output if done.exit_code == 0 else f"{done.exit_code}: {done.output}"


def test_a_cluster_is_secured_from_the_command_line(tmp_path):
    assert "stream.key (keep both here" in command(tmp_path, "certs", "init").replace("\n", "")
    assert command(tmp_path, "certs", "init").startswith("1: ")
    command(tmp_path, "certs", "issue", "head", "--kind", "server", "--host", "10.0.0.1")
    command(tmp_path, "certs", "issue", "node-7", "--kind", "node", "--days", "5")
    shown = command(tmp_path, "certs", "show")
    for words in ("authority", "server head", "10.0.0.1", "node node-7", "5 days left"):
        assert words in shown
    token = command(tmp_path, "token", "add", "ada", "--role", "operator", "--expires", "2d").splitlines()[0]
    listed = command(tmp_path, "token", "list")
    assert "ada" in listed
    assert "expires soon" in listed
    assert token not in listed
    assert Tokens.of(Config(state_dir=str(tmp_path)), SystemClock()).person(token).name == "ada"
    assert "is revoked" in command(tmp_path, "token", "remove", "ada")
    assert "no token exists" in command(tmp_path, "token", "list")


@pytest.mark.parametrize("given", ["0d", "5", "d", "-1d", "3q"])
def test_a_duration_that_is_none_is_refused(tmp_path, given):
    assert "not a duration" in command(tmp_path, "token", "add", "ada", "--role", "viewer", f"--expires={given}")
