"""Rules of packs over metrics: those of this release with their faults and innocent twins, and how long, how new and of whom something must be."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detectors.diagnosis import Diagnosis
from detectors.metric_rules import MetricRules
from detectors.rules.pack import merged, read, rule_set
from detectors.rules.rule_examples import run_examples
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Entity, Evidence, Finding, Incident, Kind, Severity, Topology
from fakes.synthetic_events import claims_of
from remediation.policy.escalation import escalation_of

SHIPPED = rule_set(())
NAMES = ("a", "b")


def rules(text: str) -> MetricRules:
    chosen = merged([read(text, "test.toml")])
    assert chosen.problems == ()
    return MetricRules(_rules=chosen)


def rule(name: str = "hot", when: str = '"heat > 10"', **more: object) -> str:
    words = "".join(f"{key} = {value}\n" for key, value in more.items())
    return f'[[rule]]\nname = "{name}"\nentity = "node"\nwhen = {when}\nsummary = "it is"\nadvice = "cool it"\n{words}'


def ticks(rows: Sequence[Mapping[str, Sequence[float]]], names: tuple[str, ...] = NAMES, every_s: float = 1.0, begin: float = 0.0) -> Iterator[Frame]:
    """A tick for each row: metric → a value for each node."""
    for number, row in enumerate(rows):
        columns = {metric: np.array(values, np.float32) for metric, values in row.items()}
        yield Frame(job="t/n/r", number=number + 1, generation=1, time=begin + 1e9 + number * every_s, tick=True, entities={Kind.NODE: names}, metrics={Kind.NODE: columns})


def heat(*values: float) -> list[dict[str, tuple[float, float]]]:
    """Of the first node; the second one is cold."""
    return [{"heat": (value, 1.0)} for value in values]


def told(claims: Sequence[Claim]) -> list[tuple[str, bool]]:
    return [(claim.entity.name, claim.active) for claim in claims]


@pytest.mark.parametrize("each", SHIPPED.rules, ids=lambda each: each.name)
def test_fault_and_twin_of_every_rule_of_this_release(each):
    assert each.table.fires
    assert each.table.quiet
    assert [(result.example, sorted(result.told)) for result in run_examples(each) if not result.passed] == []


def test_fault_of_long_enough_is_told_with_its_numbers_and_its_remedy():
    detector = rules(rule(for_s=3, clear_s=2, severity='"sev1"', runbook='"https://site/hot"'))
    first, last = claims_of(detector, ticks(heat(5, 12, 12, 13, 14, 12, 5, 5, 5)))
    assert (first.kind, first.entity.name, first.score, first.since) == ("rule.hot", "a", 0.9, 1e9 + 1)
    assert first.evidence == (
        Evidence(text="node a: it is: heat is 14 (> 10) for 3s; remedy: cool it; see https://site/hot (rule hot, sev1)", metric="heat", value=14.0, threshold=10.0),
    )
    assert not last.active
    assert last.evidence[-1].value == 1e9 + 7, "two seconds after it was true last"


@pytest.mark.parametrize("values", [(12, 12, 5, 12, 12), (12, 12, np.nan, np.nan), (np.inf, np.inf, np.inf, np.inf, np.inf), (np.nan,) * 5])
def test_twin_that_is_shorter_or_not_read_is_not_told(values):
    assert claims_of(rules(rule(for_s=3)), ticks(heat(*values))) == []


def test_twin_of_two_readings_with_nothing_in_between_for_minutes_is_not_told():
    frames = ticks(heat(12, 12), every_s=600.0)
    assert claims_of(rules(rule(for_s=300)), frames) == []


def test_a_reading_that_is_missing_for_a_moment_neither_breaks_nor_ends_it():
    claims = claims_of(rules(rule(for_s=3, clear_s=1)), ticks(heat(12, np.nan, 12, 12, np.nan, np.nan, np.nan, 12)))
    assert told(claims) == [("a", True)]


def test_it_is_withdrawn_when_nothing_is_read_any_more():
    rows = [*heat(12), *[{"heat": (np.nan, 1.0)}] * 4]
    assert told(claims_of(rules(rule()), ticks(rows, every_s=300.0))) == [("a", True), ("a", False)]
    rows = [*heat(12), *[{"other": (1.0, 1.0)}] * 4]
    assert told(claims_of(rules(rule()), ticks(rows, every_s=300.0))) == [("a", True), ("a", False)]


def test_twin_of_a_counter_that_was_there_before_or_is_reset_does_not_rise():
    detector = rules(rule(when='"heat rises"'))
    assert claims_of(detector, ticks(heat(np.nan, 7, 7, np.nan, 7, 0, 0))) == []
    [claim] = claims_of(detector, ticks(heat(1), begin=10.0))
    assert "rose from 0 to 1" in claim.evidence[0].text


def test_a_counter_that_rises_while_the_columns_move_is_that_of_the_same_entity():
    detector = rules(rule(when='"heat rises"'))
    assert claims_of(detector, ticks([{"heat": (5.0, 1.0)}])) == []
    assert claims_of(detector, ticks([{"heat": (9.0, 1.0, 5.0)}], names=("c", "b", "a"), begin=1.0)) == []
    assert told(claims_of(detector, ticks([{"heat": (6.0, 1.0)}], begin=2.0))) == [("a", True)]


def test_its_time_goes_on_while_the_columns_move():
    detector = rules(rule(for_s=2))
    assert claims_of(detector, ticks(heat(12, 12))) == []
    claims = claims_of(detector, ticks([{"heat": (1.0, 1.0, 12.0)}], names=("c", "b", "a"), begin=2.0))
    assert [(claim.entity.name, claim.since) for claim in claims] == [("a", 1e9)]


def test_one_that_is_gone_for_a_while_is_told_once_and_withdrawn_when_it_is_gone_for_good():
    detector = rules(rule(clear_s=10))
    assert told(claims_of(detector, ticks(heat(12)))) == [("a", True)]
    assert claims_of(detector, ticks([{"heat": (1.0,)}] * 5, names=("b",), begin=1.0)) == []
    assert claims_of(detector, ticks(heat(12, 12), begin=6.0)) == []
    assert told(claims_of(detector, ticks(heat(1, 1), begin=20.0, every_s=20.0))) == [("a", False)]
    assert told(claims_of(detector, ticks(heat(12), begin=50.0))) == [("a", True)]
    assert told(claims_of(detector, ticks([{"heat": (1.0,)}] * 2, names=("b",), begin=60.0, every_s=700.0))) == [("a", False)]


def test_only_what_is_new_where_a_rule_asks_for_it():
    text = rule(new="true")
    assert claims_of(rules(text), ticks(heat(12, 12, 12))) == []
    assert told(claims_of(rules(text), ticks(heat(5, 12)))) == [("a", True)]


def test_the_mean_of_a_span_and_not_its_peak():
    text = rule(mean_s=10)
    assert claims_of(rules(text), ticks(heat(*[0, 0, 0, 0, 80, 0, 0, 0, 0, 0] * 3))) == []
    [claim] = claims_of(rules(text), ticks(heat(*[0, 40] * 8)))
    assert "the mean of heat in 10s is" in claim.evidence[0].text
    assert claims_of(rules(text), ticks(heat(*[80, *[np.nan] * 10] * 2))) == [], "one reading makes no mean"


def test_peers_say_what_is_usual_where_they_agree():
    names = tuple("abcdefgh")
    detector = rules(rule(when='"width < peers"'))
    assert told(claims_of(detector, ticks([{"width": (8, *[16] * 7)}], names))) == [("a", True)]
    for widths in ((8, 8, 8, *[16] * 5), (8, 16, 16, *[np.nan] * 5), (8,) * 8):
        assert claims_of(rules(rule(when='"width < peers"')), ticks([{"width": widths}], names)) == []


def test_all_conditions_must_be_true_and_bits_are_looked_for():
    text = rule(when='["reasons has 0x40", "used >= 50"]')
    rows = [{"reasons": (0x44, 0x40), "used": (90.0, 10.0)}, {"reasons": (0x4, 0x4), "used": (90.0, 90.0)}]
    [claim] = claims_of(rules(text), ticks(rows))
    assert (claim.entity.name, claim.evidence[1].text) == ("a", "used is 90 (>= 50)")
    assert "reasons is 0x44, which has 0x40" in claim.evidence[0].text


def test_a_metric_that_a_node_does_not_have_says_nothing():
    assert claims_of(rules(rule(when='["heat > 10", "used > 1"]')), ticks(heat(12, 12))) == []


def test_a_steady_run_with_every_value_kept_is_the_same_after_pickling():
    detector = rules(rule(for_s=2) + rule("rising", '"heat rises"') + rule("mean", mean_s=5))
    found = []
    for frame in ticks(heat(*range(20))):
        detector = pickle.loads(pickle.dumps(detector))
        found += claims_of(detector, [frame])
    whole = claims_of(rules(rule(for_s=2) + rule("rising", '"heat rises"') + rule("mean", mean_s=5)), ticks(heat(*range(20))))
    assert found == whole != []


# --- packs of the site


def test_a_site_replaces_and_switches_off_rules_by_name_and_its_mistakes_cost_no_other_rule(tmp_path: Path):
    pack = tmp_path / "site.toml"
    pack.write_text(rule("gpu_hot") + '[[rule]]\nname = "gpu_remap_pending"\nenabled = false\n' + rule("gpu_power_brake", '"nonsense"') + rule("mine"))
    detector = MetricRules(packs=(pack, tmp_path / "missing.toml"))
    known = {state.rule.name: state.rule for states in detector._states.values() for state in states}
    assert known.keys() == {each.name for each in SHIPPED.rules} - {"gpu_remap_pending"} | {"mine"}
    assert known["gpu_hot"].when == "heat > 10"
    assert known["gpu_power_brake"].when == "throttle_reasons has 0x80"
    assert [problem.partition(": ")[0] for problem in detector.problems] == [f"{pack}:13", f"{tmp_path / 'missing.toml'}:1"]


# --- what comes of it


def finding(kind: str, node: str, time: float) -> Finding:
    [claim] = claims_of(rules(rule(kind, severity='"sev1"')), ticks(heat(12)))
    return Finding(
        id=f"{kind}{node}", revision=1, detector="metric_rules", digest="", job="t/n/r", entity=Entity(kind=Kind.NODE, name=node), kind=claim.kind, score=claim.score,
        since=time, time=time, evidence=claim.evidence, active=True,
    )  # fmt: skip


def incidents(*findings: Finding) -> list[Incident]:
    return list(Diagnosis().diagnose([], findings, Topology()))


def test_twin_a_rule_alone_accuses_nobody_and_asks_for_nothing_whatever_its_severity():
    [incident] = incidents(finding("hot", "a", 100.0))
    assert (incident.cause, incident.severity, incident.culprits) == ("rule fired", Severity.INFO, ())
    assert escalation_of(incident.cause, incident.severity).only_informs


def test_one_rule_in_many_places_is_one_incident_and_two_rules_are_two():
    assert len(incidents(finding("hot", "a", 100.0), finding("hot", "b", 110.0))) == 1
    assert len(incidents(finding("hot", "a", 100.0), finding("wet", "a", 100.0))) == 2
    assert len(incidents(finding("hot", "a", 100.0), finding("hot", "b", 500.0))) == 2


def test_cut_frames_say_nothing():
    assert claims_of(rules(rule()), [replace(frame, tick=False) for frame in ticks(heat(12))]) == []


def test_of_a_storm_some_come_a_tick_later_and_all_from_the_same_second(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("detectors.metric_rules.FIRED_A_TICK", 3)
    names = tuple("abcdefgh")
    detector = rules(rule())
    claims = [claims_of(detector, [frame]) for frame in ticks([{"heat": (12.0,) * 8}] * 4, names)]
    assert [len(each) for each in claims] == [3, 3, 2, 0]
    assert {claim.since for each in claims for claim in each} == {1e9}


def test_there_is_a_limit_of_what_is_told_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("detectors.metric_rules.CLAIMS_KEPT", 5)
    names = tuple("abcdefgh")
    assert len(claims_of(rules(rule()), ticks([{"heat": (12.0,) * 8}] * 4, names))) == 5


def test_one_that_is_back_and_well_is_withdrawn_at_once_and_not_as_gone():
    detector = rules(rule(clear_s=10))
    assert told(claims_of(detector, ticks(heat(12)))) == [("a", True)]
    assert claims_of(detector, ticks([{"heat": (1.0,)}] * 2, names=("b",), begin=1.0)) == []
    [claim] = claims_of(detector, ticks(heat(1, 1), begin=20.0))
    assert (claim.active, claim.evidence[-1].text) == (False, "over: heat > 10: not any more")
