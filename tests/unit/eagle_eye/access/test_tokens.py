"""Tokens of people: who is let in, as what, and what the file does when it is changed, broken or gone."""

from pathlib import Path

import pytest

from eagle_eye.access import Authorization, Role, Tokens
from eagle_eye.access.secret_files import too_open
from eagle_eye.access.tokens import VARIABLE, add_person, own_token, read_entries, remove_person, tokens_path
from eagle_eye.clock import FakeClock
from eagle_eye.config import AccessConfig, Config
from eagle_eye.errors import AccessDenied, ConfigError, NotAuthenticated


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens" / "tokens.toml"


def test_a_token_says_who_somebody_is_and_stands_nowhere_in_the_file(path, clock):
    token = add_person(path, "ada", Role.OPERATOR, now=clock.now(), tenant="team")
    person = Tokens(path, clock).person(token)
    assert (person.name, person.role, person.tenant) == ("ada", Role.OPERATOR, "team")
    assert token not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_token_of_a_tenant_sees_its_jobs_alone(path, clock):
    token = add_person(path, "ada", Role.VIEWER, now=clock.now(), tenant="team")
    ada = Tokens(path, clock).person(token)
    assert ada.sees("team/gpt/7")
    assert not ada.sees("teams/gpt/7")


@pytest.mark.parametrize("shown", ["", "eet_wrong", "sha256:abc", "\x00"])
def test_nobody_else_is_let_in(path, clock, shown):
    add_person(path, "ada", Role.ADMIN, now=clock.now())
    with pytest.raises(NotAuthenticated) as raised:
        Tokens(path, clock).person(shown)
    assert "eet_wrong" not in str(raised.value)


def test_the_hash_in_the_file_is_no_token(path, clock):
    add_person(path, "ada", Role.ADMIN, now=clock.now())
    with pytest.raises(NotAuthenticated):
        Tokens(path, clock).person(read_entries(path)["ada"].hash)


def test_an_expired_token_is_told_so(path, clock):
    token = add_person(path, "ada", Role.VIEWER, now=clock.now(), expires=clock.now() + 60)
    tokens = Tokens(path, clock)
    assert tokens.person(token).name == "ada"
    clock.advance(61)
    with pytest.raises(NotAuthenticated, match="the token of ada expired on"):
        tokens.person(token)


def test_a_change_counts_from_the_next_question_on(path, clock):
    tokens = Tokens(path, clock)
    assert not tokens.configured
    token = add_person(path, "ada", Role.VIEWER, now=clock.now())
    assert tokens.configured
    assert tokens.person(token).name == "ada"
    remove_person(path, "ada")
    with pytest.raises(NotAuthenticated, match="not known here"):
        tokens.person(token)


def test_taking_the_file_away_lets_nobody_in(path, clock):
    token = add_person(path, "ada", Role.VIEWER, now=clock.now())
    tokens = Tokens(path, clock)
    path.unlink()
    assert tokens.configured
    with pytest.raises(NotAuthenticated, match="all requests are refused"):
        tokens.person(token)


def test_a_broken_file_lets_nobody_in_until_it_is_mended(path, clock):
    token = add_person(path, "ada", Role.VIEWER, now=clock.now())
    tokens, whole = Tokens(path, clock), path.read_text()
    path.write_text(whole + "[bob]\nrole = 'king'\n")
    with pytest.raises(NotAuthenticated, match="all requests are refused"):
        tokens.person(token)
    path.write_text(whole)
    assert tokens.person(token).name == "ada"


def test_a_file_that_is_open_to_others_is_refused_at_the_start(path, clock):
    add_person(path, "ada", Role.VIEWER, now=clock.now())
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        Tokens(path, clock)


def test_a_file_that_the_configuration_names_must_be_there(tmp_path, clock):
    config = Config(state_dir=str(tmp_path), access=AccessConfig(tokens_file=str(tmp_path / "none.toml")))
    with pytest.raises(ConfigError, match=r"none\.toml"):
        Tokens.of(config, clock)
    assert not Tokens.of(Config(state_dir=str(tmp_path)), clock).configured
    assert tokens_path(Config(state_dir=str(tmp_path))) == tmp_path / "tokens" / "tokens.toml"


def test_a_name_has_one_token_and_plain_letters(path, clock):
    add_person(path, "ada", Role.VIEWER, now=clock.now())
    with pytest.raises(ConfigError, match="token remove ada"):
        add_person(path, "ada", Role.ADMIN, now=clock.now())
    with pytest.raises(ConfigError, match="not usable as a name"):
        add_person(path, "a\nb", Role.ADMIN, now=clock.now())
    with pytest.raises(ConfigError, match="token list"):
        remove_person(path, "bob")


def test_ones_own_token_comes_from_a_closed_file_or_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert own_token(AccessConfig()) == ""
    monkeypatch.setenv(VARIABLE, " eet_other ")
    assert own_token(AccessConfig()) == "eet_other"
    file = tmp_path / "token"
    file.write_text("eet_mine\n")
    file.chmod(0o600)
    assert own_token(AccessConfig(token_file=str(file))) == "eet_mine"
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600") as raised:
        own_token(AccessConfig(token_file=str(file)))
    assert "eet_mine" not in str(raised.value)


def test_a_file_of_root_may_be_read_by_the_group_that_it_was_handed_to():
    assert not too_open(0o640, owned_by_root=True, as_root=False)
    assert too_open(0o660, owned_by_root=True, as_root=False)
    assert too_open(0o644, owned_by_root=True, as_root=False)
    assert too_open(0o640, owned_by_root=False, as_root=False)
    assert too_open(0o640, owned_by_root=True, as_root=True)
    assert not too_open(0o400, owned_by_root=False, as_root=False)


# --- the authorization --------------------------------------------------------------------------------------------------------


def test_each_role_may_do_what_the_one_before_may():
    assert [[held.includes(needed) for needed in Role] for held in Role] == [[True, False, False], [True, True, False], [True, True, True]]


def test_where_tokens_are_the_person_is_who_the_token_says(path, clock):
    token = add_person(path, "ada", Role.OPERATOR, now=clock.now())
    authorization = Authorization(Tokens(path, clock), trust_claims=True)
    assert authorization.admit(Role.OPERATOR, "approve", token=token).name == "ada"
    assert authorization.admit(Role.OPERATOR, "approve", token=token, claimed="ada").name == "ada"
    with pytest.raises(AccessDenied, match=r"the token belongs to ada, not to bob"):
        authorization.admit(Role.OPERATOR, "approve", token=token, claimed="bob")
    with pytest.raises(AccessDenied, match="ada has the role operator: reconfigure needs the role admin"):
        authorization.admit(Role.ADMIN, "reconfigure", token=token)
    with pytest.raises(NotAuthenticated, match=VARIABLE):
        authorization.admit(Role.VIEWER, "status", claimed="ada")


def test_without_tokens_a_claim_is_believed_on_loopback_and_said_once(path, clock, caplog):
    authorization = Authorization(Tokens(path, clock), trust_claims=True)
    assert authorization.admit(Role.OPERATOR, "approve", claimed="ada").name == "ada"
    authorization.admit(Role.OPERATOR, "approve", claimed="ada")
    assert [record.message for record in caplog.records] == ["no tokens are configured: the name ada is not authenticated (approve)"]
    with pytest.raises(NotAuthenticated, match="--as"):
        authorization.admit(Role.OPERATOR, "approve")


def test_without_tokens_a_certificate_alone_only_reads(path, clock):
    authorization = Authorization(Tokens(path, clock), trust_claims=False)
    assert authorization.admit(Role.VIEWER, "status").role is Role.VIEWER
    with pytest.raises(NotAuthenticated, match="token add NAME --role operator"):
        authorization.admit(Role.OPERATOR, "approve", claimed="ada")
