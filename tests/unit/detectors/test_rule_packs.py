"""Packs of rules: which mistake is told at which line, with its remedy, and what of a pack with mistakes still counts."""

from pathlib import Path

import pytest

from detectors.rules.condition import parse
from detectors.rules.pack import LARGEST, Pack, SwitchedOff, load, merged, read
from detectors.rules.rule_examples import run_examples

GOOD = '''[[rule]]
name = "hot"
entity = "gpu"
when = "heat > 10"
summary = "it is hot"
advice = "cool it"
'''


def problems(text: str) -> list[str]:
    return [str(problem) for problem in read(text, "p.toml").problems]


def changed(before: str, after: str) -> str:
    assert before in GOOD
    return GOOD.replace(before, after)


MISTAKES = {
    "toml": (changed('"gpu"', ""), 3, "correct the TOML"),
    "cut off": (GOOD + 'runbook = "http', 7, "correct the TOML"),
    "table": (GOOD + "[rules]\n", 7, "write each rule under [[rule]]"),
    "no table": ("rule = 3\n", 1, "as a table under [[rule]]"),
    "no name": (changed('name = "hot"\n', ""), 1, "no 'name': add it"),
    "name": (changed('"hot"', '"Hot GPU"'), 2, "lower-case letters"),
    "no entity": (changed('entity = "gpu"\n', ""), 1, "one of gpu, link, mount, worker, node"),
    "entity": (changed('"gpu"', '"nic"'), 3, "one of gpu, link, mount, worker, node"),
    "entity that has no metrics": (changed('"gpu"', '"job"'), 3, "one of gpu, link, mount, worker, node"),
    "no condition": (changed('when = "heat > 10"\n', ""), 1, "no 'when': write"),
    "condition": (changed('"heat > 10"', '"heat is high"'), 4, '"METRIC OP NUMBER"'),
    "second condition": (changed('"heat > 10"', '[\n  "heat > 10",\n  "heat >",\n]'), 6, "'heat >' is no condition"),
    "no summary": (changed('summary = "it is hot"\n', ""), 1, "no 'summary'"),
    "no advice": (changed('advice = "cool it"\n', ""), 1, "no 'advice'"),
    "unknown key": (GOOD + 'runbok = "https://x"\n', 7, "no key 'runbok'; it has: name, entity"),
    "acts": (GOOD + "may_act = true\n", 7, "no key 'may_act'"),
    "runbook": (GOOD + 'runbook = "wiki/hot"\n', 7, "begins with https://"),
    "type": (GOOD + 'for_s = "long"\n', 7, "for_s is 'long'"),
    "range": (GOOD + "for_s = -1\n", 7, "for_s is -1"),
    "severity": (GOOD + 'severity = "critical"\n', 7, "severity is 'critical'"),
    "rises for": (changed("heat > 10", "heat rises") + "for_s = 5\n", 7, "leave for_s out"),
    "short mean": (GOOD + "mean_s = 1\n", 7, "5 seconds or more"),
    "example": (GOOD + "fires = [{ cold = 1 }]\n", 7, "gives cold, which no condition"),
    "example of peers": (GOOD + "fires = [{ heat = { a = 1 } }]\n", 7, "a table under peers"),
    "twice": (GOOD + GOOD, 8, "another rule of this file is called 'hot'"),
}


@pytest.mark.parametrize(("text", "line", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_with_its_line_and_its_remedy(text, line, words):
    [problem] = problems(text)
    assert problem.startswith(f"p.toml:{line}: ")
    assert words in problem


def test_each_mistake_of_a_rule_is_told_and_the_other_rules_count():
    pack = read(changed('"hot"', '"other"') + "\n" + GOOD.replace("it is hot", "").replace("heat > 10", "heat"), "p.toml")
    assert [rule.name for rule in pack.rules] == ["other"]
    assert [problem.line for problem in pack.problems] == [11, 12]


def test_a_rule_that_is_switched_off_needs_its_name_alone():
    assert read('[[rule]]\nname = "hot"\nenabled = false\n', "p.toml") == Pack(off=(SwitchedOff("hot", "p.toml", 2),))


def test_a_rule_that_is_switched_off_and_does_not_exist_is_told_with_its_line_and_the_nearest_name():
    off = read('# ours\n[[rule]]\nname = "hott"\nenabled = false\n', "off.toml")
    [problem] = merged([read(GOOD, "p.toml"), off]).problems
    assert str(problem).startswith("off.toml:3: it switches off 'hott'")
    assert str(problem).endswith("did you mean 'hot'?")
    [far] = merged([read(GOOD, "p.toml"), read('[[rule]]\nname = "zzzz"\nenabled = false\n', "off.toml")]).problems
    assert "`eagle-eye rules list`" in far.text


def test_a_rule_may_be_switched_off_twice_and_in_a_pack_before_but_not_in_one_that_comes_later():
    off = read('[[rule]]\nname = "hot"\nenabled = false\n', "off.toml")
    assert merged([read(GOOD, "p.toml"), off, off]).problems == ()
    assert merged([read(GOOD, "p.toml"), off]).rules == ()
    assert len(merged([off, read(GOOD, "p.toml")]).problems) == 1


def test_rules_that_are_written_as_one_list_are_read_and_told_at_the_first_line():
    pack = read('rule = [{ name = "hot", entity = "gpu", when = "heat > 1", summary = "it", advice = "do" }, { name = "b" }]\n', "p.toml")
    assert [rule.name for rule in pack.rules] == ["hot"]
    assert {problem.line for problem in pack.problems} == {1}


@pytest.mark.parametrize("content", [b"\xff\xfe", b"#" * (LARGEST + 1), b'a = "\x00"'], ids=["no text", "too large", "nul"])
def test_a_file_that_is_no_pack_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "pack.toml"
    path.write_bytes(content)
    assert len(load(path).problems) == 1
    assert len(load(tmp_path).problems) == 1, "a folder"


@pytest.mark.parametrize("text", ["heat", "> 1", "heat > nan", "heat > inf", "heat > 1e99", "heat has 0", "heat has 0x1000000", "heat > peers * 2", "heat > peers + -2", "Heat > 1", "heat > 1; rises", "heat rises 3"])
def test_what_is_no_condition(text):
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "op", "number", "factor"),
    [("heat>1.5e3", ">", 1500, 0), ("heat  !=  -2", "!=", -2, 0), ("heat has 12", "has", 12, 0), ("heat < 0.5 * peers", "<", 0, 0.5), ("heat >= peers - 3", ">=", -3, 1), ("heat <= 2*peers + .5", "<=", 0.5, 2)],
)
def test_what_a_condition_is(text, op, number, factor):
    condition = parse(text)
    assert condition is not None
    assert (condition.metric, condition.op, condition.number, condition.factor) == ("heat", op, number, factor)


def test_an_example_that_comes_out_otherwise_is_found():
    pack = read(GOOD + "for_s = 30\nfires = [{ heat = 9 }, { heat = [12, 9] }, { heat = 12 }]\nquiet = [{ heat = 12 }, { heat = 9 }]\n", "p.toml")
    assert [result.passed for result in run_examples(pack.rules[0])] == [False, False, True, False, True]
