"""`eagle-eye rules list | check | test`."""

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console

from detectors.rules.pack import Pack, load, merged, rule_set, shipped
from detectors.rules.rule import MetricRule
from detectors.rules.rule_examples import ExampleResult, run_examples
from eagle_eye.app import options
from eagle_eye.app.printing import TableColumn, print_json, print_table, print_text
from eagle_eye.app.rule_metrics import doubts
from eagle_eye.config import Config
from eagle_eye.durations import duration_text

RULES = (
    TableColumn("rule", name=True), TableColumn("of", drop=2), TableColumn("when", prose=True), TableColumn("for", drop=1), TableColumn("severity", drop=3),
    TableColumn("pack", drop=4, name=True),
)  # fmt: skip
_files = click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))


@click.group(short_help="list, check and test the rules over metrics")
def command() -> None:
    """Rules over metrics: thresholds, states and counters of GPUs, links, mounts, workers and nodes, in packs of TOML. A rule informs: it restarts and evicts
    nothing. A pack of yours is named in the configuration: [detectors.metric_rules] packs = ["/etc/eagle-eye/rules.toml"].

    \b
    Examples:
      eagle-eye rules list
      eagle-eye rules check rules.toml
      eagle-eye rules test rules.toml
    """


@command.command("list", short_help="the rules that are judged, with their conditions")
@options.deployment
@options.as_json
@options.wide
def list_rules(config: Config, json_lines: bool, wide: bool) -> None:
    """List the rules of this release and of the configured packs, as a server that starts now would judge them. What is wrong with a pack goes to stderr.

    \b
    Examples:
      eagle-eye rules list
      eagle-eye rules list --wide
      eagle-eye rules list --json
    """
    from eagle_eye.app import plugin_wiring

    found = rule_set(plugin_wiring.configured_packs(config))
    for rule in found.rules if json_lines else ():
        print_json({**msgspec.to_builtins(rule.table), "when": [str(each) for each in rule.conditions], "pack": rule.file, "line": rule.line})
    if not json_lines:
        print_table(Console(), RULES, [_row(rule) for rule in found.rules], wide=wide)
    for problem in found.problems:
        click.echo(f"left out: {problem}", err=True)


@command.command(short_help="find the mistakes of packs, each with its file and line")
@_files
def check(files: Sequence[Path]) -> None:
    """Read packs and say what is wrong in them, with file and line. Exits with 1 where a rule has a mistake, or one is switched off that neither this release nor
    a pack named before it has. A metric that no collector of this release reads is named, and is no mistake: one of your own may read it.

    \b
    Examples:
      eagle-eye rules check rules.toml
      eagle-eye rules check /etc/eagle-eye/rules/*.toml
    """
    packs = [(path, load(path)) for path in files]
    wrong = merged([*shipped(), *(pack for _, pack in packs)]).problems
    for problem in (*wrong, *doubts(rule for _, pack in packs for rule in pack.rules)):
        print_text(Console(), str(problem))
    for path, pack in packs:
        if not any(problem.file == str(path) for problem in wrong):
            click.echo(f"{path} is fine: {_counted(pack)}")
    if wrong:
        raise SystemExit(1)


@command.command(short_help="run the examples of packs through the detector")
@_files
@click.option("--shipped", "of_release", is_flag=True, help="Also those of this release.")
def test(files: Sequence[Path], of_release: bool) -> None:
    """Run the examples of each rule (`fires` and `quiet`) through the detector that a server runs. Exits with 1 where one comes out otherwise, or where a rule has a
    mistake or no example of both kinds.

    \b
    Examples:
      eagle-eye rules test rules.toml
      eagle-eye rules test rules.toml --shipped
    """
    packs = [load(path) for path in files]
    problems = [problem for pack in packs for problem in pack.problems]
    rules = [*(rule for pack in packs for rule in pack.rules), *(merged(shipped()).rules if of_release else ())]
    results = [result for rule in rules for result in run_examples(rule)]
    failed = [_words(result) for result in results if not result.passed]
    untested = [f"{_place(rule)}: give it an example under {key}" for rule in rules for key in ("fires", "quiet") if not getattr(rule.table, key)]
    for line in (*map(str, problems), *failed, *untested):
        print_text(Console(), line)
    click.echo(f"{len(rules)} rules, {len(results)} examples, {len(failed)} of them came out otherwise")
    if problems or failed or untested:
        raise SystemExit(1)


def _row(rule: MetricRule) -> tuple[str, ...]:
    table = rule.table
    when = rule.when + (f", mean of {duration_text(table.mean_s)}" if table.mean_s else "") + (", new" if table.new else "")
    return table.name, str(table.entity), when, duration_text(table.for_s) if table.for_s else "at once", str(table.severity), Path(rule.file).name


def _counted(pack: Pack) -> str:
    known = {rule.name for rule in merged(shipped()).rules}
    replaced = sum(rule.name in known for rule in pack.rules)
    parts = [f"{len(pack.rules)} rule{'' if len(pack.rules) == 1 else 's'}"]
    parts += [f"{replaced} in the place of one of this release"] if replaced else []
    parts += [f"{len(pack.off)} switched off"] if pack.off else []
    return ", ".join(parts)


def _words(result: ExampleResult) -> str:
    example = msgspec.json.encode(result.example).decode()
    if result.expected:
        return f"{_place(result.rule)}: does not fire for {example}; it should"
    return f"{_place(result.rule)}: fires for {example}; it should not"


def _place(rule: MetricRule) -> str:
    return f"{rule.file}:{rule.line}: {rule.name}"
