"""Receivers with their secrets, and the signature by which a receiver knows us."""

import pytest

from eagle_eye.errors import ConfigError
from eagle_eye.types import Severity
from remediation.alerts.http_post import is_signed, signature
from remediation.alerts.receiver import Receiver, endpoint_of

KEY = "0123456789abcdef0123456789abcdef"
SECRET = "of the operator"


@pytest.fixture
def keep(tmp_path):
    def file(text, mode=0o600):
        path = tmp_path / f"secret{len(list(tmp_path.iterdir()))}"
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    return file


def test_secrets_come_from_files_or_variables_of_the_receivers_name(keep, monkeypatch):
    pager = endpoint_of(Receiver(kind="pagerduty", key_file=keep(KEY + "\n")))
    assert (pager.key, pager.url) == (KEY, "https://events.pagerduty.com/v2/enqueue")
    monkeypatch.setenv("EAGLE_EYE_NIGHT_SHIFT_URL", "https://hooks.slack.com/services/T0/B0/xyz")
    assert endpoint_of(Receiver(kind="slack", name="night-shift")).url.endswith("/xyz")
    monkeypatch.setenv("EAGLE_EYE_OURS_SECRET", SECRET)
    assert endpoint_of(Receiver(kind="plain", name="ours", url="http://127.0.0.1:9/")).secret == SECRET.encode()


def test_an_alertmanager_is_named_by_its_page():
    for url in ("http://am:9093", "http://am:9093/", "http://am:9093/api/v2/alerts"):
        assert endpoint_of(Receiver(kind="alertmanager", url=url)).url == "http://am:9093/api/v2/alerts"
    assert endpoint_of(Receiver(kind="alertmanager", url="https://am/of/us/?a=b")).url == "https://am/of/us/api/v2/alerts?a=b"


@pytest.mark.parametrize(
    ("table", "remedy"),
    [
        ({"kind": "slack"}, "EAGLE_EYE_SLACK_URL"),
        ({"kind": "slack", "url": "file:///etc/passwd"}, "https://"),
        ({"kind": "slack", "url": "http://"}, "name a host"),
        ({"kind": "slack", "url": "http://host:port/"}, "name a host"),
        ({"kind": "plain", "url": "http://h/"}, "EAGLE_EYE_PLAIN_SECRET"),
        ({"kind": "plain", "url": "http://h/", "secret_file": "/nowhere"}, "/nowhere"),
        ({"kind": "pagerduty"}, "32 characters"),
        ({"kind": "alertmanager", "url": "https://h/", "ca_file": "/nowhere.pem"}, "/nowhere.pem"),
    ],
)
def test_what_cannot_be_reached_is_refused_with_a_remedy(table, remedy):
    with pytest.raises(ConfigError, match=remedy):
        endpoint_of(Receiver(**table))


def test_a_key_of_the_wrong_length_is_refused_and_not_shown(keep):
    with pytest.raises(ConfigError) as refused:
        endpoint_of(Receiver(kind="pagerduty", key_file=keep("tooshort")))
    assert "tooshort" not in str(refused.value)


def test_a_secret_that_everybody_may_read_is_refused(keep):
    with pytest.raises(ConfigError, match="chmod 600"):
        endpoint_of(Receiver(kind="pagerduty", key_file=keep(KEY, 0o644)))


def test_nothing_secret_is_in_its_text_or_in_what_it_redacts(keep):
    endpoint = endpoint_of(
        Receiver(kind="alertmanager", url="https://ada:lovelace@am.example:9093/T0/xyz-12345?token=abc", key_file=keep("user:pass-word"), secret_file=keep(SECRET))
    )
    told = endpoint.redact(f"{endpoint.url} {SECRET} user:pass-word pass-word xyz-12345 token=abc lovelace")
    for secret in ("lovelace", "xyz", "abc", "pass-word", SECRET):
        assert secret not in repr(endpoint)
        assert secret not in told
        assert secret not in endpoint.shown
    assert endpoint.shown == "https://am.example:9093"


@pytest.mark.parametrize(
    ("minimum", "wanted"), [("info", 4), ("sev3", 3), ("sev2", 2), ("sev1", 1)]
)
def test_a_receiver_hears_of_its_severity_and_worse(minimum, wanted):
    receiver = Receiver(kind="slack", min_severity=Severity(minimum))
    assert sum(receiver.wants(severity) for severity in Severity) == wanted
    assert receiver.wants(Severity.SEV1)


# --- the signature -------------------------------------------------------------------------------------------------


def test_a_letter_is_known_by_its_secret_its_body_and_its_time():
    secret, body, now = SECRET.encode(), b'{"id": "i1"}', 1_700_000_000
    header = signature(secret, now, body)
    assert is_signed(secret, header, body, now + 10)
    assert not is_signed(b"another", header, body, now)
    assert not is_signed(secret, header, body + b" ", now)
    assert not is_signed(secret, header, body, now + 301)  # overheard, and sent again later
    assert not is_signed(secret, header, body, now - 301)
    assert not is_signed(secret, header.replace("t=1", "t=2"), body, now)


@pytest.mark.parametrize("header", ["", "t=", "v1=00", "t=x,v1=00", "t=-5,v1=00", "t=1700000000", "t=1700000000,v1=é", "t=²,v1=0", ","])
def test_a_malformed_signature_is_none(header):
    assert not is_signed(b"s", header, b"", 1_700_000_000)
