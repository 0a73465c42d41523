import pytest

from eagle_eye.errors import NewerVersion, WireError
from eagle_eye.training import messages


def test_a_message_comes_back_as_it_went() -> None:
    line = messages.encode("hello", worker="run/a/0", pid=7)
    assert line.endswith(b"\n")
    assert messages.decode(line) == {"v": 1, "kind": "hello", "worker": "run/a/0", "pid": 7}


@pytest.mark.parametrize("line", [b"", b"no json", b"[1]", b"{}", b'{"v":1}', b'{"kind":"x"}', b'{"v":"1","kind":"x"}'])
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(WireError):
        messages.decode(line)


def test_a_newer_message_is_told_apart() -> None:
    with pytest.raises(NewerVersion, match="version 2"):
        messages.decode(b'{"v":2,"kind":"x"}')


def test_lines_are_cut_wherever_the_bytes_break() -> None:
    data = messages.encode("a") + b"\n" + messages.encode("b")
    lines = messages.Lines()
    found = [line for byte in data for line in lines.feed(bytes([byte]))]
    assert [messages.decode(line)["kind"] for line in found] == ["a", "b"]


def test_an_endless_line_is_refused() -> None:
    lines = messages.Lines()
    with pytest.raises(WireError, match="does not speak"):
        list(lines.feed(b"x" * (messages.LONGEST + 1)))


def test_a_token_is_good_once() -> None:
    verifier = messages.TokenVerifier("secret")
    first = messages.token("secret", 0)
    assert verifier.accept(first)
    assert not verifier.accept(first)
    assert verifier.accept(messages.token("secret", 1))


def test_a_token_older_than_one_that_was_taken_is_worth_nothing() -> None:
    verifier = messages.TokenVerifier("secret")
    assert verifier.accept(messages.token("secret", 3))
    assert not verifier.accept(messages.token("secret", 2))
    assert verifier.accept(messages.token("secret", 4))


@pytest.mark.parametrize("offered", [None, 5, "", "secret", messages.token("other", 0)])
def test_what_is_no_token_is_not_taken(offered: object) -> None:
    assert not messages.TokenVerifier("secret").accept(offered)


def test_without_a_secret_no_token_is_taken() -> None:
    verifier = messages.TokenVerifier("")
    assert not verifier.accept("anything")


def test_a_refusal_is_raised_in_the_other_ends_words() -> None:
    with pytest.raises(WireError, match="not you"):
        messages.answer_of(messages.decode(messages.reply(False, error="not you")))
    assert messages.answer_of(messages.decode(messages.reply(True, step=3)))["step"] == 3
