"""What looks like a secret does not leave the node; what does not stays readable."""

from pathlib import Path

import pytest

from eagle_eye.redaction import last_lines, redact


@pytest.mark.parametrize(
    ("text", "secret"),
    [("password=hunter2 next", "hunter2"), ("DB_PASSWORD: 'a b c'", "a b c"), ('{"api_key": "k123456"}', "k123456"),
     ("--hf-token abcdef train", "abcdef"), ("Authorization: Bearer abc.def.ghi", "abc.def.ghi"),
     ("https://me:pa55@host/x", "pa55"), ("using hf_AbCdEfGhIjKlMnOp", "hf_AbCd"), ("AKIAIOSFODNN7EXAMPLE1", "IOSFODNN7"),
     ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI", "wJalrX"),
     ('x"secret": "abcdef"', "abcdef"), ("1http://me:pa55@host", "pa55"), ("x" * 100 + "://me:pa55@host", "pa55"), ("a---hf-token abcdef", "abcdef"), ("x" * 500 + "_token=abcdef", "abcdef"),
     ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE")],
)  # fmt: skip
def test_secrets_are_hidden(text: str, secret: str) -> None:
    assert secret not in redact(text)
    assert "[redacted]" in redact(text)


@pytest.mark.parametrize(
    "text", ["step 12 loss 2.31 tokens 4096/s", "RuntimeError: shape [3, 4] at layer 7", "saved /data/step-10.safetensors"]
)
def test_ordinary_lines_stay(text: str) -> None:
    assert redact(text) == text


def test_the_last_lines_of_this_process_alone(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text("of the one before\n")
    since = log.stat().st_size
    log.write_text(log.read_text() + "".join(f"line {number}\n" for number in range(30)))
    assert last_lines(log, lines=2, since=since) == "line 28\nline 29"
    assert "before" not in last_lines(log, lines=100, since=since)
    assert last_lines(tmp_path / "none") == ""
