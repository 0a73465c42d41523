"""The job does lastingly less than it did: always told, with the cause where something shows it; pauses and other work are no loss."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from detectors.throughput import ThroughputLoss
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Kind
from fakes.synthetic_events import claims_of, cut_frame, event, job
from fakes.synthetic_frames import Draft, Fault, StepDraft, job_frames, layout_of

LOSS = ("job.throughput_lost", True)
OVER = ("job.throughput_lost", False)
Change = Callable[[StepDraft], None]


def each_step(change: Change, first: int = 30, last: int = 1 << 30) -> Fault:
    """A change of the steps of some ticks."""

    def fault(draft: Draft) -> None:
        if first <= draft.tick <= last:
            for step in draft.steps:
                change(step)

    return fault


def longer(phase: str, seconds: float) -> Change:
    def change(step: StepDraft) -> None:
        step.values[phase] += np.float32(seconds)
        step.values["step_s"] += np.float32(seconds)

    return change


def metric(kind: Kind, name: str, value: float, first: int = 30, last: int = 1 << 30) -> Fault:
    def fault(draft: Draft) -> None:
        if first <= draft.tick <= last:
            draft.metrics[kind][name] = np.full(len(draft.entities[kind]), value, dtype=np.float32)

    return fault


def frames(*faults: Fault, ticks: int = 60, nodes: int = 2, epoch: int = 1, step_s: float = 0.5, seed: int = 0) -> list[Frame]:
    return list(job_frames(nodes, 2, ticks, np.random.default_rng(seed), faults=faults, step_s=step_s, layout=layout_of(nodes, 2, epoch=epoch)))


def found(*faults: Fault, ticks: int = 60, **more: float) -> list[Claim]:
    return claims_of(ThroughputLoss(), frames(*faults, ticks=ticks, **more))  # type: ignore[arg-type]


def kinds(claims: list[Claim]) -> list[tuple[str, bool]]:
    """In the order of their first mention; what is only told with other figures does not count."""
    return list(dict.fromkeys((claim.kind, claim.active) for claim in claims))


def cycled(longest_s: float, every: int) -> Change:
    """Most steps take what they did, each so-many-th waits: what a CPU quota does to short steps."""

    def change(step: StepDraft) -> None:
        if step.number % every == 0:
            longer("forward_s", longest_s)(step)

    return change


# --- the loss ----------------------------------------------------------------------------------------------------------


def test_fault_a_job_at_half_its_throughput_is_told_within_ten_seconds_with_an_unknown_cause() -> None:
    detector = ThroughputLoss()
    at, claim = next((frame.number, claim) for frame in frames(each_step(longer("other_s", 0.5))) for claim in detector.update(frame))
    assert (claim.kind, claim.entity) == ("job.throughput_lost", job())
    assert at - 30 <= 10
    assert claim.evidence[0].value == pytest.approx(0.5, abs=0.03)
    assert "tokens/s instead of" in claim.evidence[0].text
    assert "cause is unknown" in claim.evidence[-1].text


def test_fault_a_quota_that_stops_every_tenth_short_step_costs_throughput_though_nine_of_ten_take_as_long_as_ever() -> None:
    assert kinds(found(each_step(cycled(0.06, 10)), step_s=0.005)) == [LOSS]


def test_it_stays_until_the_throughput_is_back_and_is_over_then() -> None:
    assert kinds(found(each_step(longer("other_s", 0.5), last=200), ticks=200)) == [LOSS]
    claims = found(each_step(longer("other_s", 0.5), last=60), ticks=90)
    assert kinds(claims) == [LOSS, OVER]
    assert "of its earlier throughput again" in claims[-1].evidence[-1].text


def test_half_way_back_is_not_back() -> None:
    assert kinds(found(each_step(longer("other_s", 0.5), last=60), each_step(longer("other_s", 0.1), first=61), ticks=120)) == [LOSS]


def test_what_creeps_is_measured_against_the_best_that_the_job_held() -> None:
    def creeping(step: StepDraft) -> None:
        longer("other_s", 0.001 * (step.number - 200))(step)

    assert kinds(found(each_step(creeping, first=100), ticks=400)) == [LOSS]


def test_a_loss_that_goes_on_after_a_restart_is_told_again() -> None:
    detector = ThroughputLoss()
    claims_of(detector, frames(ticks=40))
    begun = cut_frame(1.0, event("epoch.started", job(), 1.0, epoch=2))
    assert kinds(claims_of(detector, [begun, *frames(each_step(longer("other_s", 0.5), first=0), ticks=20, epoch=2)])) == [LOSS]
    over = claims_of(detector, [cut_frame(2.0, event("epoch.started", job(), 2.0, epoch=3))])
    assert [(claim.active, claim.evidence[-1].text) for claim in over] == [(False, "over: epoch 3 has begun")]


# --- what explains it --------------------------------------------------------------------------------------------------


def test_fault_a_slow_link_is_slow_communication_and_no_contended_host() -> None:
    claims = found(each_step(longer("communication_s", 1.5)), metric(Kind.WORKER, "runqueue_percent", 40.0), ticks=80)
    assert kinds(claims) == [("communication.slow", True), LOSS]
    assert "on all 4 workers" in claims[0].evidence[0].text
    assert not any("unknown" in line.text for line in claims[1].evidence)


def test_one_worker_that_computes_longer_is_no_slow_communication_though_the_others_wait_in_it() -> None:
    def waiting(step: StepDraft) -> None:
        step.values["step_s"] += np.float32(0.5)
        step.values["forward_s"][0] += np.float32(0.5)
        step.values["communication_s"][1:] += np.float32(0.5)

    assert kinds(found(each_step(waiting))) == [LOSS]


def test_fault_input_that_comes_slowly_all_the_time() -> None:
    assert kinds(found(each_step(longer("data_s", 0.5)))) == [("input.slow", True), LOSS]


def spent(phase: str, place: int | slice, seconds: float) -> Change:
    """Some workers spend longer in it, the others wait for them."""

    def change(step: StepDraft) -> None:
        values = step.values.setdefault(phase, np.zeros(len(step.values["step_s"]), np.float32))
        waited = np.full(len(values), seconds, np.float32)
        values[place] += np.float32(seconds)
        waited[place] = 0.0
        step.values["communication_s"] += waited
        step.values["step_s"] += np.float32(seconds)

    return change


@pytest.mark.parametrize(("phase", "kind"), [("data_s", "input.slow"), ("garbage_collection_s", "garbage_collection.slow")])
def test_fault_one_worker_whose_input_or_garbage_collection_takes_long_is_named(phase: str, kind: str) -> None:
    claims = found(each_step(spent(phase, 2, 0.5), last=60), ticks=90)
    assert kinds(claims) == [(kind, True), LOSS, (kind, False), OVER]
    assert {claim.entity.name for claim in claims if claim.kind == kind} == {"run/node-1/0"}
    assert "run/node-1/0 alone" in claims[0].evidence[0].text


@pytest.mark.parametrize("place", [slice(None), slice(2, 4)])
@pytest.mark.parametrize(("phase", "kind"), [("data_s", "input.slow"), ("garbage_collection_s", "garbage_collection.slow")])
def test_twin_what_more_than_one_worker_waits_for_names_none_of_them(phase: str, kind: str, place: slice) -> None:
    claims = found(each_step(spent(phase, place, 0.5)))
    assert kinds(claims) == [(kind, True), LOSS]
    assert {claim.entity.kind for claim in claims} == {Kind.JOB}


def test_garbage_that_is_collected_within_a_phase_is_not_computing() -> None:
    def collecting(step: StepDraft) -> None:
        spent("garbage_collection_s", 2, 0.5)(step)
        step.values["forward_s"][2] += np.float32(0.5)

    claims = found(each_step(collecting))
    assert kinds(claims) == [("garbage_collection.slow", True), LOSS]
    now, before = re.findall(r"computing takes ([\d.]+) s, ([\d.]+) s before", claims[0].evidence[0].text)[0]
    assert float(now) == pytest.approx(float(before), abs=0.05)


def test_twin_garbage_that_was_always_collected_explains_no_loss() -> None:
    always = each_step(spent("garbage_collection_s", 2, 0.5), first=0)
    assert kinds(found(always, each_step(longer("other_s", 1.0)))) == [LOSS]


def test_who_is_named_stays_named_though_others_wait_now_and_then() -> None:
    claims = found(each_step(spent("data_s", 2, 0.5), last=50), each_step(spent("data_s", slice(None), 0.5), first=51), ticks=80)
    assert {claim.entity.name for claim in claims if claim.kind == "input.slow"} == {"run/node-1/0"}


def test_fault_a_quota_of_the_workers_cgroup_is_named_with_node_and_figure_until_it_is_lifted() -> None:
    faults = (each_step(longer("forward_s", 0.75), last=60), metric(Kind.WORKER, "throttled_percent", 97.0, last=60), metric(Kind.WORKER, "cpu_quota", 0.5))
    claims = found(*faults, ticks=90)
    assert kinds(claims) == [("cpu.throttled", True), LOSS, ("cpu.throttled", False), OVER]
    assert {claim.entity.name for claim in claims if claim.kind == "cpu.throttled"} == {"node-0", "node-1"}
    assert "CPU quota of 0.50 processors" in claims[0].evidence[0].text


def test_fault_other_processes_that_take_the_processors() -> None:
    faults = (each_step(longer("forward_s", 0.5)), metric(Kind.WORKER, "runqueue_percent", 50.0), metric(Kind.NODE, "cpu_percent", 100.0))
    claims = found(*faults)
    assert kinds(claims) == [("host.contended", True), LOSS]


def test_an_explanation_that_ends_leaves_a_loss_of_unknown_cause() -> None:
    busy = (metric(Kind.WORKER, "runqueue_percent", 50.0, last=45), metric(Kind.NODE, "cpu_percent", 100.0, last=45))
    claims = found(each_step(longer("forward_s", 0.5)), *busy, ticks=80)
    assert kinds(claims) == [("host.contended", True), LOSS, ("host.contended", False)]
    assert "cause is unknown" in [claim for claim in claims if claim.kind == "job.throughput_lost"][-1].evidence[-1].text


@pytest.mark.parametrize("signal", [(Kind.WORKER, "throttled_percent", 60.0), (Kind.NODE, "cpu_percent", 95.0)])
def test_what_was_there_before_the_loss_explains_nothing(signal: tuple[Kind, str, float]) -> None:
    always = (metric(*signal, first=0), metric(Kind.WORKER, "runqueue_percent", 50.0, first=0))
    assert kinds(found(each_step(longer("other_s", 0.5)), *always, ticks=80)) == [LOSS]


# --- innocent twins ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["evaluation_s", "checkpoint_s"])
def test_twin_marked_pauses_of_one_worker_or_all_are_no_loss(phase: str) -> None:
    def pausing(step: StepDraft) -> None:
        longer(phase, 5.0)(step)

    def alone(step: StepDraft) -> None:
        step.values["step_s"] += np.float32(5.0)
        step.values[phase][0] += np.float32(5.0)
        step.values["communication_s"][1:] += np.float32(5.0)

    assert found(each_step(pausing)) == found(each_step(alone)) == []


def test_twin_unmarked_pauses_of_a_minute_now_and_then_are_no_loss() -> None:
    def pausing(step: StepDraft) -> None:
        if step.number % 40 == 0:
            longer("other_s", 60.0)(step)

    assert found(each_step(pausing, first=0), ticks=300) == found(each_step(pausing), ticks=300) == []


def test_twin_a_briefly_busy_machine() -> None:
    six_steps = found(each_step(longer("forward_s", 0.8), last=32), ticks=90)
    assert six_steps == []


def test_twin_longer_steps_with_more_tokens_are_other_work() -> None:
    def doubled(step: StepDraft) -> None:
        for name in ("step_s", "forward_s", "backward_s", "tokens"):
            step.values[name] *= np.float32(2.0)

    assert found(each_step(doubled), ticks=120) == []


def test_twin_smaller_batches_in_shorter_steps_are_other_work() -> None:
    """Their overhead makes fewer tokens a second of them."""

    def halved(step: StepDraft) -> None:
        step.values["tokens"] *= np.float32(0.5)
        step.values["step_s"] *= np.float32(0.8)

    assert found(each_step(halved), ticks=120) == []


@pytest.mark.parametrize("seed", range(5))
def test_twin_uneven_sequence_lengths_without_tokens(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def uneven(step: StepDraft) -> None:
        step.values["step_s"] *= np.float32(rng.uniform(0.5, 1.5))
        del step.values["tokens"]

    assert found(each_step(uneven, first=0), ticks=600) == []


def test_twin_a_resize_to_fewer_workers_is_a_level_of_its_own_and_full_size_is_compared_with_full_size() -> None:
    detector = ThroughputLoss()
    claims_of(detector, frames(ticks=40))
    smaller = [cut_frame(1.0, event("epoch.started", job(), 1.0, epoch=2)), *frames(nodes=1, ticks=40, epoch=2)]
    assert claims_of(detector, smaller) == []
    full = [cut_frame(2.0, event("epoch.started", job(), 2.0, epoch=3)), *frames(each_step(longer("other_s", 0.5), first=0), ticks=40, epoch=3)]
    assert kinds(claims_of(detector, full)) == [LOSS]


def test_twin_slow_first_steps_of_a_start_and_of_a_restart() -> None:
    def warming(step: StepDraft) -> None:
        longer("forward_s", 3.0 / (1 + step.number))(step)

    detector = ThroughputLoss()
    assert claims_of(detector, frames(each_step(warming, first=0), ticks=60)) == []
    begun = cut_frame(1.0, event("epoch.started", job(), 1.0, epoch=2))
    assert claims_of(detector, [begun, *frames(each_step(warming, first=0), ticks=60, epoch=2)]) == []


def test_twin_a_loss_of_a_tenth_is_within_what_varies() -> None:
    assert found(each_step(longer("forward_s", 0.05)), ticks=120) == []


def test_twin_late_steps_of_an_epoch_that_is_over() -> None:
    detector = ThroughputLoss()
    claims_of(detector, frames(ticks=40))
    late = frames(each_step(longer("other_s", 0.5)), ticks=60)[40:]
    begun = cut_frame(1.0, event("epoch.started", job(), 1.0, epoch=2))
    assert claims_of(detector, [begun, *late]) == []


def test_steps_of_which_nobody_told_how_long_they_took_say_nothing() -> None:
    def nothing(step: StepDraft) -> None:
        step.values = {name: np.full_like(values, np.nan) for name, values in step.values.items()}

    assert found(each_step(nothing)) == []
    assert claims_of(ThroughputLoss(), (replace(frame, steps=()) for frame in frames())) == []




def test_share_and_window_are_settings() -> None:
    slower = each_step(longer("other_s", 0.1))
    assert found(slower, ticks=90) == []
    assert kinds(claims_of(ThroughputLoss(lost=0.1), frames(slower, ticks=90))) == [LOSS]


# --- what moved with it ------------------------------------------------------------------------------------------------


def moved(*faults: Fault, ticks: int = 90, nodes: int = 4, metrics: dict[Kind, dict[str, float]] | None = None) -> list[str]:
    """The last lines that the loss was told with."""
    layout = layout_of(nodes, 2, gpus=True)
    there = [metric(kind, name, value, first=0) for kind, names in (metrics or {}).items() for name, value in names.items()]
    seen = job_frames(nodes, 2, ticks, np.random.default_rng(4), faults=[*there, *faults], gpus=True, layout=layout)
    told = [claim for claim in claims_of(ThroughputLoss(), list(seen)) if claim.kind == "job.throughput_lost" and claim.active]
    assert told
    return [line.text for line in told[-1].evidence[2:]]


def times(kind: Kind, name: str, factor: float, first: int = 30, of: slice = slice(None)) -> Fault:
    def fault(draft: Draft) -> None:
        if draft.tick >= first:
            draft.metrics[kind][name][of] *= np.float32(factor)

    return fault


CAPPED = (
    each_step(longer("forward_s", 0.2)), metric(Kind.GPU, "throttle_reasons", 4.0), times(Kind.GPU, "sm_clock_mhz", 0.72), times(Kind.GPU, "power_watts", 0.7),
)  # fmt: skip


def test_fault_a_cap_on_all_gpus_is_told_with_the_loss_the_throttling_first_and_power_as_what_slower_steps_lower_too() -> None:
    throttled, clock, power = moved(*CAPPED)
    assert throttled == "moved with it: 8 of 8 GPUs are throttled that were not before (power cap)"
    assert re.fullmatch(r"moved with it: sm_clock_mhz \d+ → 13\d\d \(median\), on 8 of 8 GPUs", clock)
    assert "power_watts" in power
    assert power.endswith("slower steps by themselves lower it")


def test_fault_heat_and_a_slow_file_system_are_told_though_they_are_read_seldom_or_come_late() -> None:
    def mounts(draft: Draft) -> None:
        draft.entities[Kind.MOUNT] = tuple(f"node-{number}/data" for number in range(4))
        seconds = np.full(4, 0.002 if draft.tick < 30 else 0.08, np.float32)
        draft.metrics[Kind.MOUNT] = {"read_s": seconds if draft.tick % 10 == 0 else np.full(4, np.nan, np.float32)}

    def warm(draft: Draft) -> None:
        draft.metrics[Kind.GPU]["temperature_celsius"] += np.float32(min(max(draft.tick - 30, 0), 20))

    mount, heat = moved(each_step(longer("forward_s", 0.3)), mounts, warm, ticks=150)
    assert mount == "moved with it: read_s 0.002 → 0.08 (median), on 4 of 4 mounts"
    assert "temperature_celsius" in heat


def test_twin_what_slower_steps_lower_by_themselves_leaves_the_cause_unknown() -> None:
    slower = each_step(longer("forward_s", 0.3))
    waiting = (times(Kind.GPU, "power_watts", 0.7), times(Kind.GPU, "utilisation_percent", 0.6), times(Kind.NODE, "net_sent_bytes_per_s", 0.6))
    assert moved(slower, *waiting) == ["nothing that was seen explains it: the cause is unknown"]


def test_twin_a_metric_that_moves_all_the_time_or_on_few_gpus_is_not_named() -> None:
    def swinging(draft: Draft) -> None:
        draft.metrics[Kind.GPU]["sm_clock_mhz"] *= np.float32(0.7 if draft.tick // 12 % 2 or draft.tick >= 60 else 1.0)
        draft.metrics[Kind.GPU]["temperature_celsius"] += np.float32(8.0 * np.sin(draft.tick / 5.0))

    unknown = ["nothing that was seen explains it: the cause is unknown"]
    assert moved(each_step(longer("forward_s", 0.3), first=60), swinging, ticks=100) == unknown
    assert moved(each_step(longer("forward_s", 0.3)), times(Kind.GPU, "sm_clock_mhz", 0.7, of=slice(0, 3))) == unknown


def test_what_the_gpus_of_others_on_the_same_nodes_do_is_not_told() -> None:
    def strangers(draft: Draft) -> None:
        draft.entities[Kind.GPU] += tuple(f"GPU-other/{number}" for number in range(16))
        for name, values in draft.metrics[Kind.GPU].items():
            draft.metrics[Kind.GPU][name] = np.concatenate([values, np.full(16, 1900.0 if draft.tick < 30 else 200.0, np.float32)])

    assert moved(each_step(longer("forward_s", 0.3)), strangers) == ["nothing that was seen explains it: the cause is unknown"]


def test_a_loss_after_a_restart_is_compared_with_the_time_before_it_and_not_with_the_restart() -> None:
    detector, layouts = ThroughputLoss(), (layout_of(4, 2, gpus=True), layout_of(4, 2, gpus=True, epoch=2))
    first, second = (
        list(job_frames(4, 2, 60, np.random.default_rng(4), faults=faults, gpus=True, layout=layout))
        for layout, faults in zip(layouts, ((), (each_step(longer("forward_s", 0.3), first=0), times(Kind.GPU, "sm_clock_mhz", 0.7, first=0))), strict=True)
    )
    begun = cut_frame(first[-1].time, event("epoch.started", job(), first[-1].time, epoch=2))
    claims = claims_of(detector, [*first, begun, *second])
    assert any("sm_clock_mhz" in line.text for line in claims[-1].evidence)
