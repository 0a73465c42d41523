"""Packs of rules: read, checked, and put together, with the file and line of each mistake."""

import errno
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from eagle_eye.errors import UNREADABLE
from eagle_eye.text_file import read_text

from .condition import FORM, RISES, RuleCondition, parse
from .rule import ENTITIES, MetricRule, RuleProblem, RuleTable

LARGEST = 1 << 20
"""Bytes of a pack."""
MOST_RULES, MOST_CONDITIONS = 1000, 8
_FOLDER = "packs"
_HEADER = re.compile(r"^\s*\[\[\s*rule\s*\]\]")
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)|\(at end of document\)")
_AT_KEY = re.compile(r" - at `\$\.?([A-Za-z0-9_]*)")
_FIELD = re.compile(r"field `([^`]*)`")


class SwitchedOff(NamedTuple):
    """A rule that a pack switches off, and where it says so."""

    name: str
    file: str
    line: int


@dataclass(frozen=True)
class Pack:
    """The rules of one file that are in order, those that it switches off, and what is wrong with the others."""

    rules: tuple[MetricRule, ...] = ()
    off: tuple[SwitchedOff, ...] = ()
    problems: tuple[RuleProblem, ...] = ()


@dataclass(frozen=True)
class RuleSet:
    """What is judged: the rules of this release, with those of the site in the place of those of the same name."""

    rules: tuple[MetricRule, ...]
    problems: tuple[RuleProblem, ...] = ()


def shipped() -> tuple[Pack, ...]:
    """The packs of this release."""
    folder = resources.files(__package__).joinpath(_FOLDER)
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return tuple(read(file.read_text(encoding="utf-8"), file.name) for file in files)


def load(path: Path) -> Pack:
    """A pack of the site. What cannot be read is a problem of its first line."""
    try:
        return read(read_text(path, LARGEST), str(path))
    except OSError as error:
        if error.errno == errno.EFBIG:
            return _refused(str(path), f"a pack has at most {LARGEST:,} bytes: divide it")
        return _refused(str(path), f"cannot be read ({error.strerror or error}): name a file that the server's user may read")


def rule_set(paths: Sequence[Path]) -> RuleSet:
    """The rules of this release and of the site's packs, the later ones before the earlier ones."""
    return merged([*shipped(), *map(load, paths)])


def merged(packs: Sequence[Pack]) -> RuleSet:
    """A later pack's rule takes the place of the one of its name; a rule with a mistake leaves the one before as it was."""
    chosen: dict[str, MetricRule] = {}
    named: set[str] = set()
    problems: list[RuleProblem] = []
    for pack in packs:
        named |= {rule.name for rule in pack.rules}
        chosen |= {rule.name: rule for rule in pack.rules}
        for off in pack.off:
            chosen.pop(off.name, None)
        problems += [*pack.problems, *off_in_vain(pack, named)]
    return RuleSet(tuple(chosen.values()), tuple(problems))


def off_in_vain(pack: Pack, named: Collection[str]) -> Iterator[RuleProblem]:
    """What a pack switches off and nothing is called: a slip of the pen leaves the rule that was meant as it was. `named`: of the rules of all packs up to this one."""
    for off in pack.off:
        if off.name not in named:
            near = get_close_matches(off.name, sorted(named), n=1)
            meant = f"did you mean {near[0]!r}?" if near else "`eagle-eye rules list` names those that there are"
            yield RuleProblem(off.file, off.line, f"it switches off {off.name!r}, and no rule of this release or of a pack named before it is called so: {meant}")


def read(text: str, file: str) -> Pack:
    """The pack in a text; `file` is what mistakes are told of."""
    try:
        tables = tomllib.loads(text)
    except UNREADABLE as error:
        at = _AT_LINE.search(str(error))
        line = int(at[1]) if at and at[1] else len(text.splitlines()) or 1
        return _refused(file, f"{_AT_LINE.sub('', str(error)).strip()}: correct the TOML", line)
    lines = _Lines(text, file)
    if unknown := sorted(set(tables) - {"rule"}):
        return _refused(file, f"{unknown[0]!r} is no part of a pack: write each rule under [[rule]]", lines.of_word(unknown[0]))
    rules = tables.get("rule", [])
    if not isinstance(rules, list) or not all(isinstance(each, dict) for each in rules):
        return _refused(file, "write each rule as a table under [[rule]]", lines.of_word("rule"))
    if len(rules) > MOST_RULES:
        return _refused(file, f"a pack has at most {MOST_RULES} rules, this one has {len(rules)}: divide it")
    return _pack(rules, lines)


def _refused(file: str, text: str, line: int = 1) -> Pack:
    return Pack(problems=(RuleProblem(file, line, text),))


def _pack(tables: Sequence[Mapping[str, Any]], lines: "_Lines") -> Pack:
    found: dict[str, MetricRule] = {}
    off: dict[str, SwitchedOff] = {}
    problems: list[RuleProblem] = []
    lines.count(len(tables))
    for number, table in enumerate(tables):
        try:
            rule = msgspec.convert(table, RuleTable)
        except msgspec.ValidationError as error:
            problems.append(_not_converted(str(error), table, lines, number))
            continue
        wrong = list(_mistakes(rule, table, lines, number))
        if not wrong and (rule.name in found or rule.name in off):
            wrong = [lines.problem(number, "name", f"another rule of this file is called {rule.name!r}: give this one another name")]
        problems += wrong
        if not wrong and rule.enabled:
            conditions = tuple(filter(None, map(parse, conditions_of(rule))))
            found[rule.name] = MetricRule(rule, conditions, lines.file, lines.of_rule(number))
        elif not wrong:
            off[rule.name] = SwitchedOff(rule.name, lines.file, lines.of_key(number, "name"))
    return Pack(tuple(found.values()), tuple(off.values()), tuple(problems))


def conditions_of(rule: RuleTable) -> tuple[str, ...]:
    """As they are written."""
    return (rule.when,) if isinstance(rule.when, str) else rule.when


def _not_converted(error: str, table: Mapping[str, Any], lines: "_Lines", number: int) -> RuleProblem:
    named, at = _FIELD.search(error), _AT_KEY.search(error)
    key = named[1] if named else at[1] if at else ""
    said = error.partition(" - at `")[0]
    if "unknown field" in said:
        said = f"a rule has no key {key!r}; it has: {', '.join(RuleTable.__struct_fields__)}"
    elif "missing required field" in said:
        said = f"the rule has no {key!r}: add it"
    elif key == "name":
        said = f"name is {table.get('name')!r}: write lower-case letters, digits and underlines, a letter first, at most 64"
    elif key == "entity":
        said = f"entity is {table.get('entity')!r}: write one of {', '.join(ENTITIES)}"
    else:
        said = f"{key} is {_shown(table.get(key))}: {said[:1].lower()}{said[1:]}"
    return lines.problem(number, key, said)


def _shown(value: Any) -> str:
    return f"a {type(value).__name__}" if isinstance(value, list | tuple | dict) else repr(value)


def _mistakes(rule: RuleTable, table: Mapping[str, Any], lines: "_Lines", number: int) -> Iterator[RuleProblem]:
    """What is wrong with a table that has all types right. One that is switched off needs its name alone."""
    if not rule.enabled:
        return
    if rule.entity not in ENTITIES:
        said = f"entity is {str(rule.entity)!r}" if "entity" in table else "the rule has no 'entity'"
        yield lines.problem(number, "entity", f"{said}: write one of {', '.join(ENTITIES)}")
    written = conditions_of(rule)
    if not written:
        yield lines.problem(number, "when", f"the rule has no 'when': write {FORM}")
    if len(written) > MOST_CONDITIONS:
        yield lines.problem(number, "when", f"a rule has at most {MOST_CONDITIONS} conditions, this one has {len(written)}")
    parsed = [parse(text) for text in written]
    for text, condition in zip(written, parsed, strict=True):
        if condition is None:
            yield lines.problem(number, text, f"{text!r} is no condition: write {FORM}")
    if not rule.summary:
        yield lines.problem(number, "summary", "the rule has no 'summary': say in a few words what is wrong when it fires")
    if not rule.advice:
        yield lines.problem(number, "advice", "the rule has no 'advice': say what a person should do")
    if rule.runbook and not rule.runbook.startswith(("https://", "http://")):
        yield lines.problem(number, "runbook", f"runbook is {rule.runbook!r}: write an address that begins with https://")
    yield from _times(rule, [each for each in parsed if each], lines, number)
    yield from _examples(rule, {each.metric for each in parsed if each}, lines, number)


def _times(rule: RuleTable, conditions: Sequence[RuleCondition], lines: "_Lines", number: int) -> Iterator[RuleProblem]:
    if any(each.op == RISES for each in conditions) and (rule.for_s or rule.mean_s):
        key = "for_s" if rule.for_s else "mean_s"
        yield lines.problem(number, key, f"what rises does so at one reading: leave {key} out, and say with clear_s for how long it is told")
    if 0 < rule.mean_s < 5:
        yield lines.problem(number, "mean_s", "a mean needs readings: write 5 seconds or more, or leave mean_s out")


def _examples(rule: RuleTable, metrics: set[str], lines: "_Lines", number: int) -> Iterator[RuleProblem]:
    for key in ("fires", "quiet"):
        for example in getattr(rule, key):
            peers = example.get("peers", {})
            named = {*(set(example) - {"peers"}), *(peers if isinstance(peers, dict) else ())}
            if not isinstance(peers, dict) or any(isinstance(value, dict) for name, value in example.items() if name != "peers"):
                yield lines.problem(number, key, f"an example in {key!r} has a number or a list of numbers for each metric, and a table under peers")
            elif foreign := sorted(named - metrics):
                yield lines.problem(number, key, f"an example in {key!r} gives {foreign[0]}, which no condition of the rule reads: {', '.join(sorted(metrics)) or 'it has none'}")


class _Lines:
    """Where things stand in the text of a pack: `tomllib` does not tell."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self._lines = text.splitlines()
        self._begins = [number for number, line in enumerate(self._lines, 1) if _HEADER.match(line)]

    def count(self, rules: int) -> None:
        """So many there are; rules that are written in another way have no line of their own."""
        if len(self._begins) != rules:
            self._begins = []

    def of_rule(self, number: int) -> int:
        return self._begins[number] if self._begins else 1

    def problem(self, number: int, word: str, text: str) -> RuleProblem:
        """At the key or condition `word` of a rule, or where it begins."""
        return RuleProblem(self.file, self.of_key(number, word), text)

    def of_word(self, word: str) -> int:
        """Of the whole text."""
        return next((number for number, line in enumerate(self._lines, 1) if word in line), 1)

    def of_key(self, number: int, word: str) -> int:
        """Of the key or condition `word` of a rule; where the rule begins, if it is not found."""
        first = self.of_rule(number)
        last = self._begins[number + 1] - 1 if number + 1 < len(self._begins) else len(self._lines)
        block = range(first, last + 1) if self._begins else range(0)
        key = re.compile(rf"^\s*[\"']?{re.escape(word)}[\"']?\s*[=.]") if word else None
        as_key = (line for line in block if key and key.match(self._lines[line - 1]))
        as_text = (line for line in block if word and f'"{word}"' in self._lines[line - 1])
        anywhere = (line for line in block if word and word in self._lines[line - 1].partition("#")[0])
        return next((line for found in (as_key, as_text, anywhere) for line in found), first)
