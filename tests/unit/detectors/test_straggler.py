"""A worker computes slower than its peers; told from waiting, from more work and from a busy host."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from detectors.straggler import Straggler
from eagle_eye.types import Claim, Kind, Layout
from fakes.synthetic_events import claims_of, cut_frame, event, job
from fakes.synthetic_frames import BEGAN, Draft, Fault, SlowWorker, job_frames, layout_of


def claims(*faults: Fault, ticks: int = 20, nodes: int = 2, each: int = 2, layout: Layout | None = None, step_s: float = 0.25) -> list[Claim]:
    rng = np.random.default_rng(0)
    return claims_of(Straggler(), job_frames(nodes, each, ticks, rng, faults=faults, step_s=step_s, layout=layout))


def kinds(found: list[Claim]) -> list[tuple[str, str, bool]]:
    return [(claim.kind, claim.entity.name, claim.active) for claim in found]


def test_fault_a_worker_at_half_speed_is_named_within_four_seconds_with_its_speed() -> None:
    detector = Straggler()
    frames = job_frames(2, 2, 20, np.random.default_rng(0), faults=[SlowWorker(1, 2.0, 8)], step_s=0.25)
    time, claim = next((frame.time, claim) for frame in frames for claim in detector.update(frame))
    assert kinds([claim]) == [("worker.slow", "run/node-0/1", True)]
    assert time - (BEGAN + 8) <= 4.0
    assert claim.evidence[1].metric == "speed"
    assert claim.evidence[1].value == pytest.approx(0.52, abs=0.05)


def test_both_workers_of_a_slow_node_are_named() -> None:
    found = claims(SlowWorker(2, 2.5, 8), SlowWorker(3, 2.5, 8))
    assert {claim.entity.name for claim in found} == {"run/node-1/0", "run/node-1/1"}


def test_workers_of_a_slow_node_are_named_together_even_if_one_crosses_the_line_first() -> None:
    detector = Straggler()
    frames = job_frames(2, 2, 20, np.random.default_rng(0), faults=[SlowWorker(2, 2.5, 8), SlowWorker(3, 2.5, 9)], step_s=0.25)
    first = next(found for frame in frames if (found := list(detector.update(frame))))
    assert {claim.entity.name for claim in first} == {"run/node-1/0", "run/node-1/1"}


def test_a_worker_that_keeps_up_again_is_withdrawn_and_so_it_is_with_a_new_epoch() -> None:
    assert [claim.active for claim in claims(SlowWorker(1, 2.0, 5, 11), ticks=24)] == [True, False]
    detector = Straggler()
    claims_of(detector, job_frames(2, 2, 20, np.random.default_rng(0), faults=[SlowWorker(1, 2.0, 5)], step_s=0.25))
    over = claims_of(detector, [cut_frame(1.0, event("epoch.started", job(), 1.0, epoch=2))])
    assert [claim.active for claim in over] == [False]


def queue(index: int, percent: float) -> Fault:
    def fault(draft: Draft) -> None:
        draft.metrics[Kind.WORKER]["runqueue_percent"][index] = percent

    return fault


def host(node: int, **metrics: float) -> Fault:
    def fault(draft: Draft) -> None:
        for name, value in metrics.items():
            draft.metrics[Kind.NODE][name][node] = value

    return fault


def of_worker(index: int, **metrics: float) -> Fault:
    def fault(draft: Draft) -> None:
        for name, value in metrics.items():
            draft.metrics[Kind.WORKER][name][index] = value

    return fault


# compute grows by 0.175 s in a step that takes 0.425 s: 41 % of the time in the run queue
QUEUED = (SlowWorker(1, 2.0, 5), queue(1, 41.0))


@pytest.mark.parametrize(("signals", "words"), [({"cpu_percent": 100.0}, "other than its workers use 2.1 processors"), ({"cpu_steal_percent": 12.0}, "the hypervisor gave 12%")])
def test_twin_a_worker_without_a_processor_is_not_sick_its_host_is_contended(signals: dict[str, float], words: str) -> None:
    found = claims(*QUEUED, stolen(), host(0, **signals))
    assert kinds(found) == [("host.contended", "node-0", True)]
    assert words in found[0].evidence[0].text


@pytest.mark.parametrize(("ticks", "kinds_told"), [(18, ["host.contended"]), (30, ["host.contended", "worker.slow"])])
def test_a_worker_that_stays_slow_on_a_crowded_host_beyond_its_waits_is_named_after_a_while(ticks: int, kinds_told: list[str]) -> None:
    """A crowd explains a third of its slowness: that excuses a spell of it, not a lasting one."""
    found = claims(SlowWorker(1, 5.0, 5), queue(1, 28.0), stolen(), host(0, cpu_percent=100.0), ticks=ticks)
    assert [claim.kind for claim in found if claim.active] == kinds_told


def stolen() -> Fault:
    """All hosts read it."""

    def fault(draft: Draft) -> None:
        draft.metrics[Kind.NODE]["cpu_steal_percent"] = np.zeros(len(draft.entities[Kind.NODE]), dtype=np.float32)

    return fault


def test_twin_a_host_whose_signals_show_nobody_else_is_not_called_contended() -> None:
    """Its own workers crowd each other, or what makes them wait is not seen."""
    assert claims(*QUEUED) == []
    assert claims(*QUEUED, host(0, cpu_percent=48.0, processors=4.0)) == [], "all that is used is its workers'"
    assert claims(*QUEUED, host(0, cpu_percent=np.nan)) == []


def test_fault_a_worker_held_back_by_its_cpu_quota_is_not_sick_and_the_quota_is_told_with_its_figures() -> None:
    for waited in (0.0, 41.0):  # kernels differ in whether the run queue counts it
        found = claims(SlowWorker(1, 2.0, 5, 14), queue(1, waited), of_worker(1, throttled_percent=95.0, cpu_quota=0.4), ticks=30)
        assert kinds(found) == [("cpu.throttled", "node-0", True), ("cpu.throttled", "node-0", False)]
        assert "CPU quota of 0.40 processors, and used it up in 95% of its periods" in found[0].evidence[0].text


@pytest.mark.parametrize("seed", range(3))
def test_twin_workers_that_an_overloaded_host_starves_in_turn_are_not_sick(seed: int) -> None:
    """Measured on two processors with a load of 36: some compute seven times as long as their peers for seconds; the run queue is read too coarsely to tell."""
    rng = np.random.default_rng(seed)

    def starved(draft: Draft) -> None:
        who = draft.tick // 8 % 4
        for step in draft.steps:
            step.values["forward_s"][who] *= np.float32(rng.uniform(8.0, 12.0))
            step.values["step_s"] += step.values["forward_s"].max()
        draft.metrics[Kind.WORKER]["runqueue_percent"][:] = rng.uniform(25, 60, 4)
        draft.metrics[Kind.NODE]["cpu_percent"][:] = 100.0
        draft.metrics[Kind.WORKER]["cpu_percent"][:] = 20.0

    assert [claim for claim in claims(starved, ticks=60) if claim.kind == "worker.slow"] == []


def test_a_sick_worker_is_named_on_a_busy_host_where_it_did_not_wait_for_a_processor() -> None:
    assert kinds(claims(SlowWorker(1, 3.0, 5), host(0, cpu_percent=100.0), queue(1, 5.0))) == [("worker.slow", "run/node-0/1", True)]


def test_a_sick_worker_is_named_where_all_are_held_back_by_the_same_quota() -> None:
    everybody = [of_worker(index, throttled_percent=60.0, cpu_quota=8.0) for index in range(4)]
    assert kinds(claims(SlowWorker(1, 2.0, 5), *everybody)) == [("worker.slow", "run/node-0/1", True)]


@pytest.mark.parametrize("seed", range(5))
def test_twin_four_workers_on_two_busy_cores_accuse_nobody_for_two_minutes(seed: int) -> None:
    """Everybody's compute varies by half from step to step, most of it in the run queue, coarsely read."""
    rng = np.random.default_rng(seed)

    def busy(draft: Draft) -> None:
        for step in draft.steps:
            for phase in ("forward_s", "backward_s"):
                step.values[phase] *= rng.uniform(1.0, 2.5, 4).astype(np.float32)
        draft.metrics[Kind.WORKER]["runqueue_percent"][:] = rng.uniform(20, 70, 4)

    assert [claim for claim in claims(busy, ticks=120) if claim.kind == "worker.slow"] == []


@pytest.mark.parametrize(("percent", "named"), [(3.0, True), (15.0, True), (55.0, False)])
def test_the_more_a_worker_stands_in_the_run_queue_the_slower_it_has_to_be(percent: float, named: bool) -> None:
    """On a crowded machine the queue of its own threads, which hold the interpreter's lock, slows it beyond its own waits."""
    found = claims(SlowWorker(1, 5.0, 5), queue(1, percent))
    assert [claim.kind for claim in found] == ["worker.slow"] * named


@pytest.mark.parametrize(("name", "value"), [("garbage_collection_s", 1.0), ("compiled_graphs", None)])
def test_twin_what_the_garbage_collector_took_and_graphs_that_are_made_anew_are_no_slow_worker(name: str, value: float | None) -> None:
    def of_the_script(draft: Draft) -> None:
        """What it computes longer is the script's doing."""
        for step in draft.steps:
            spent = np.zeros_like(step.values["forward_s"])
            spent[1] = 2.0 if value is None else 0.5 * (step.values["forward_s"][1] + step.values["backward_s"][1])
            step.values[name] = spent

    assert claims(SlowWorker(1, 2.0, 5), of_the_script) == []


def test_fault_a_slow_worker_whose_garbage_collector_took_a_little_is_named() -> None:
    def a_little(draft: Draft) -> None:
        for step in draft.steps:
            step.values["garbage_collection_s"] = np.full_like(step.values["forward_s"], 0.002)

    assert kinds(claims(SlowWorker(1, 2.0, 5), a_little)) == [("worker.slow", "run/node-0/1", True)]


def test_twin_more_tokens_are_more_work_and_not_a_slow_worker() -> None:
    def uneven(draft: Draft) -> None:
        for step in draft.steps:
            step.values["tokens"][0] *= 2
            for phase in ("forward_s", "backward_s"):
                step.values[phase][0] *= 2

    assert claims(uneven, nodes=3, each=1) == []


def test_twin_without_tokens_a_worker_that_computes_longer_may_have_more_work() -> None:
    def uncounted(draft: Draft) -> None:
        for step in draft.steps:
            del step.values["tokens"]

    found = claims(SlowWorker(1, 2.0, 5, 25), uncounted, ticks=40)
    assert kinds(found) == [("worker.unequal_compute", "run/node-0/1", True), ("worker.unequal_compute", "run/node-0/1", False)]
    assert "logs no tokens" in found[0].evidence[-1].text


def on_gpus(lag_s: float, index: int = 1, forward: float = 1.0, timed: bool = True) -> Fault:
    """All compute on GPUs that are equally fast; the host of that worker is `lag_s` ahead, and its GPU takes `forward` times as long for that phase."""

    def fault(draft: Draft) -> None:
        for step in draft.steps:
            for name, seconds in {"gpu_forward_s": 0.06, "gpu_backward_s": 0.11, "gpu_optimizer_s": 0.01, "gpu_lag_s": 0.0}.items():
                step.values[name] = np.full_like(step.values["step_s"], seconds)
            step.values["gpu_forward_s"][index] *= forward
            step.values["gpu_lag_s"][index] = lag_s
            if not timed:
                for name in ("gpu_forward_s", "gpu_backward_s", "gpu_optimizer_s", "gpu_lag_s"):
                    step.values[name][3] = np.nan

    return fault


# the host of worker 1 needs 0.175 s longer than those of its peers
LAUNCHES = SlowWorker(1, 2.0, 5)


def test_twin_a_host_that_waits_for_room_in_the_queue_of_its_gpu_is_not_slow() -> None:
    assert claims(LAUNCHES, on_gpus(lag_s=0.3)) == []


def test_twin_with_more_tokens_a_gpu_may_take_longer_while_its_host_waits_for_it() -> None:
    def more(draft: Draft) -> None:
        for step in draft.steps:
            step.values["tokens"][1] *= 1.5
            for name in ("gpu_forward_s", "gpu_backward_s", "gpu_optimizer_s"):
                step.values[name][1] *= 1.5

    assert claims(SlowWorker(1, 3.0, 5), on_gpus(lag_s=0.5), more) == []


@pytest.mark.parametrize(
    "gpus",
    [
        on_gpus(lag_s=0.0),  # the GPU waits for its host, and in their collectives those of the others do, too: all take equally long
        on_gpus(lag_s=0.1),  # shorter than what the host takes longer
        on_gpus(lag_s=0.3, forward=1.5),
    ],
    ids=["slow host", "slow host with little ahead", "slow GPU"],
)
def test_fault_a_slow_worker_on_a_gpu_is_named(gpus: Fault) -> None:
    assert kinds(claims(LAUNCHES, gpus)) == [("worker.slow", "run/node-0/1", True)]


def test_a_host_is_not_excused_where_a_gpu_of_its_stage_was_not_timed() -> None:
    assert claims(LAUNCHES, on_gpus(lag_s=0.3), each=4) == []
    assert kinds(claims(LAUNCHES, on_gpus(lag_s=0.3, timed=False), each=4)) == [("worker.slow", "run/node-0/1", True)]


def test_twin_gpus_that_wait_in_a_collective_for_one_that_is_late_are_not_slow() -> None:
    """With FSDP the forward pass of those who were in time holds their wait for the others."""

    def waiting(draft: Draft) -> None:
        for step in draft.steps:
            step.values["gpu_forward_s"][:3] *= 3.0

    assert claims(on_gpus(lag_s=0.0), waiting) == []


def test_twin_another_pipeline_stage_may_compute_longer() -> None:
    layout = layout_of(2, 3)
    places = tuple(msgspec.structs.replace(place, pp=int(place.node == "node-1")) for place in layout.placements)
    staged = msgspec.structs.replace(layout, placements=places)
    faults = [SlowWorker(index, 2.0, 0) for index in (3, 4, 5)]
    assert claims(*faults, nodes=2, each=3, layout=staged) == []
    assert {claim.entity.name for claim in claims(SlowWorker(4, 2.0, 0), layout=staged)} == {"run/node-1/1"}


def test_twin_the_phases_alone_do_not_tell_whose_waits_they_hold() -> None:
    """Gradients reduced in the backward pass, or behind it where nothing is marked: there the waits are in those of the fast workers."""
    for phase in ("backward_s", "forward_s"):

        def waiting(draft: Draft, phase: str = phase) -> None:
            for step in draft.steps:
                step.values[phase] += step.values.pop("communication_s")

        assert claims(SlowWorker(2, 2.5, 5), SlowWorker(3, 2.5, 5), waiting) == []


def test_two_workers_cannot_be_compared() -> None:
    assert claims(SlowWorker(1, 3.0, 5), nodes=2, each=1) == []


def test_a_script_without_marks_accuses_nobody() -> None:
    def unmarked(draft: Draft) -> None:
        for step in draft.steps:
            for name in ("forward_s", "backward_s", "optimizer_s"):
                del step.values[name]

    assert claims(SlowWorker(1, 2.0, 5), unmarked) == []


def test_twin_a_few_milliseconds_more_in_a_step_that_hardly_computes_slow_nobody() -> None:
    def hardly_computing(draft: Draft) -> None:
        for step in draft.steps:
            for name in ("forward_s", "backward_s", "optimizer_s"):
                step.values[name] = step.values[name] / 20.0

    assert claims(SlowWorker(1, 2.0, 5), hardly_computing) == []


def test_twin_late_steps_of_an_epoch_that_is_over_name_nobody() -> None:
    late = list(job_frames(2, 2, 20, np.random.default_rng(0), faults=[SlowWorker(1, 2.0, 8)], step_s=0.25))
    begun = cut_frame(1.0, event("epoch.started", job(), 1.0, epoch=2))
    assert claims_of(Straggler(), late)
    assert claims_of(Straggler(), [begun, *late]) == []


# --- more work than its tokens say


def sequences(worker: int, length: float, begin: int = 0) -> Fault:
    def fault(draft: Draft) -> None:
        for step in draft.steps:
            lengths = np.full_like(step.values["step_s"], 4096.0)
            if draft.tick >= begin:
                lengths[worker] = length
            step.values["sequence_length"] = lengths

    return fault


@pytest.mark.parametrize(("length", "kind"), [(8192.0, "worker.unequal_compute"), (4096.0, "worker.slow"), (np.nan, "worker.slow")])
def test_twin_longer_sequences_of_as_many_tokens_are_more_work_and_not_a_slow_worker(length: float, kind: str) -> None:
    found = claims(SlowWorker(1, 1.5, 5), sequences(1, length))
    assert kinds(found) == [(kind, "run/node-0/1", True)]
    assert ("longer sequences" in found[0].evidence[-1].text) == (kind != "worker.slow")


def test_twin_the_longer_sequences_of_most_workers_are_no_slowness_of_theirs() -> None:
    most = [SlowWorker(index, 1.5, 5) for index in (1, 2, 3, 4, 5)]
    lengths = np.array([4096.0, 8192.0, 8192.0, 8192.0, 8192.0, 8192.0, 4096.0, 4096.0], np.float32)

    def long(draft: Draft) -> None:
        for step in draft.steps:
            step.values["sequence_length"] = lengths

    assert {claim.kind for claim in claims(*most, long, nodes=4, ticks=30)} == {"worker.unequal_compute"}


def varied(spread: float, power: float, slow: tuple[int, float] | None = None, *, constant: bool = False, seed: int = 5) -> Fault:
    """Tokens vary from worker to worker and step to step (`constant`: only from worker to worker), and a worker's compute with a power of them."""
    rng = np.random.default_rng(seed)
    fixed = np.exp(rng.normal(0.0, spread, 8))

    def fault(draft: Draft) -> None:
        for step in draft.steps:
            times = fixed if constant else np.exp(rng.normal(0.0, spread, 8))
            step.values["tokens"] *= times.astype(np.float32)
            scale = times**power
            if slow is not None and draft.tick >= 20:
                scale[slow[0]] *= slow[1]
            for phase in ("forward_s", "backward_s"):
                step.values[phase] *= scale.astype(np.float32)
            busy = step.values["forward_s"] + step.values["backward_s"] + step.values["optimizer_s"]
            step.values["communication_s"] = busy.max() - busy
            step.values["step_s"] = np.full(8, busy.max() + 0.05, np.float32)

    return fault


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("constant", [False, True])
def test_twin_whatever_a_token_costs_more_of_them_accuse_nobody(power: float, constant: bool) -> None:
    """Compute that does not follow the tokens (padding), that follows them, and that follows their square (attention)."""
    found = claims(varied(0.35, power, constant=constant, seed=4), nodes=4, ticks=120, step_s=0.5)
    assert [claim for claim in found if claim.kind == "worker.slow"] == []


@pytest.mark.parametrize(("spread", "power", "times"), [(0.0, 1.0, 1.5), (0.02, 2.0, 1.5), (0.1, 1.0, 1.6), (0.1, 2.0, 1.6), (0.3, 1.0, 2.0), (0.3, 2.0, 2.0)])
def test_fault_a_slow_worker_is_named_where_tokens_vary_once_steps_show_it_that_have_no_more_of_them(spread: float, power: float, times: float) -> None:
    found = [claim for claim in claims(varied(spread, power, (4, times)), nodes=4, ticks=60) if claim.kind == "worker.slow"]
    assert {claim.entity.name for claim in found} == {"run/node-2/0"}


def test_a_worker_that_is_slow_and_always_has_more_tokens_informs() -> None:
    def more(draft: Draft) -> None:
        for step in draft.steps:
            step.values["tokens"][1] *= 1.2

    assert kinds(claims(SlowWorker(1, 2.5, 5), more)) == [("worker.unequal_compute", "run/node-0/1", True)]


def test_twin_one_that_has_just_got_more_to_do_is_no_slow_one_for_what_it_was_before() -> None:
    assert kinds(claims(SlowWorker(1, 1.5, 8), sequences(1, 8192.0, begin=8), ticks=40)) == [("worker.unequal_compute", "run/node-0/1", True)]


# --- work of a rank, and work that wanders


def split(nodes: int, each: int, **ranks: int) -> Layout:
    """Worker i has the rank i % `ranks` of that kind, and is of replica i // `ranks`."""
    ((kind, count),) = ranks.items()
    layout = layout_of(nodes, each)
    return msgspec.structs.replace(layout, placements=tuple(msgspec.structs.replace(place, dp=place.rank // count, **{kind: place.rank % count}) for place in layout.placements))


def hot(who: Callable[[int], list[int]], times: float = 1.5) -> Fault:
    """Those workers compute longer in the step of that number; the others wait for them."""

    def fault(draft: Draft) -> None:
        for step in draft.steps:
            more = np.zeros_like(step.values["forward_s"])
            more[who(step.number)] = times - 1.0
            extra = more * (step.values["forward_s"] + step.values["backward_s"])
            for phase in ("forward_s", "backward_s"):
                step.values[phase] *= 1.0 + more
            step.values["communication_s"] += extra.max() - extra
            step.values["step_s"] += extra.max()

    return fault


@pytest.mark.parametrize("begin", [0, 20])
@pytest.mark.parametrize("kind", ["ep", "tp", "cp"])
def test_twin_a_rank_that_has_more_to_do_in_each_replica_is_not_slow(kind: str, begin: int) -> None:
    faults = [SlowWorker(index, 1.5, begin) for index in (2, 6, 10, 14)]
    assert claims(*faults, nodes=4, each=4, ticks=40, layout=split(4, 4, **{kind: 4})) == []


@pytest.mark.parametrize("kind", ["ep", "tp", "cp"])
def test_fault_a_worker_that_is_slow_beside_those_of_its_own_rank_is_named(kind: str) -> None:
    found = claims(SlowWorker(6, 1.5, 8), nodes=4, each=4, layout=split(4, 4, **{kind: 4}))
    assert kinds(found) == [("worker.slow", "run/node-1/2", True)]


@pytest.mark.parametrize("kind", ["ep", "cp"])
def test_twin_an_expert_or_a_context_rank_without_peers_is_left_alone(kind: str) -> None:
    assert claims(SlowWorker(5, 1.5, 0), nodes=8, each=1, ticks=30, layout=split(8, 1, **{kind: 8})) == []


@pytest.mark.parametrize(("replicas", "slow", "kind"), [(1, [1], "worker.unequal_compute"), (2, [1, 5], "worker.unequal_compute"), (2, [5], "worker.slow")])
def test_twin_tensor_ranks_with_few_peers_are_accused_only_where_the_same_rank_of_another_replica_keeps_up(replicas: int, slow: list[int], kind: str) -> None:
    found = claims(*(SlowWorker(index, 1.5, 5) for index in slow), nodes=replicas, each=4, layout=split(replicas, 4, tp=4))
    assert [(claim.kind, claim.entity.name) for claim in found] == [(kind, f"run/node-{index // 4}/{index % 4}") for index in slow]


def test_a_layout_that_is_told_late_ends_what_was_seen_without_it() -> None:
    frames = list(job_frames(2, 4, 20, np.random.default_rng(0), faults=[SlowWorker(5, 1.5, 0)], step_s=0.25))
    told = split(2, 4, ep=8)
    assert claims_of(Straggler(), [replace(frame, layout=None if index < 2 else told) for index, frame in enumerate(frames)]) == []


@pytest.mark.parametrize("each", [10, 12, 16, 40])
def test_twin_work_that_wanders_over_the_workers_soon_accuses_nobody(each: int) -> None:
    found = [claim for claim in claims(hot(lambda number: [number // each * 5 % 16]), nodes=4, each=4, ticks=8 * each, step_s=0.5) if claim.active]
    assert [claim.kind for claim in found[:3]] == ["worker.slow"] * 3
    assert {claim.kind for claim in found[4:]} == {"worker.unequal_compute"}
    assert len(found) > 8
    assert "work that wanders" in found[-1].evidence[-1].text


def test_twin_work_that_wanders_is_known_in_the_next_epoch_where_each_accusation_led_to_a_restart() -> None:
    """Nobody could keep up again: each time the job began anew."""
    detector, accused = Straggler(), []
    for epoch in range(1, 6):
        layout = msgspec.structs.replace(layout_of(4, 1), epoch=epoch)
        for frame in job_frames(4, 1, 15, np.random.default_rng(epoch), faults=[SlowWorker(epoch % 4, 1.6, 3)], layout=layout):
            later = 15.0 * epoch
            steps = tuple(msgspec.structs.replace(step, end=step.end + later) for step in frame.steps)
            accused += [(epoch, claim.kind) for claim in detector.update(replace(frame, time=frame.time + later, steps=steps)) if claim.active]
        claims_of(detector, [cut_frame(BEGAN + 15.0 * epoch + 15.0, event("epoch.started", job(), 1.0, epoch=epoch + 1))])
    assert accused == [(1, "worker.slow"), (2, "worker.slow"), (3, "worker.slow"), (4, "worker.unequal_compute"), (5, "worker.unequal_compute")]


def test_fault_a_worker_that_stays_slow_is_named_although_work_wandered_before() -> None:
    def who(number: int) -> list[int]:
        return [number // 12 * 5 % 16] if number < 96 else [3]

    found = [claim for claim in claims(hot(who), nodes=4, each=4, ticks=100, step_s=0.5) if claim.active]
    assert [(claim.kind, claim.entity.name) for claim in found[-2:]] == [("worker.unequal_compute", "run/node-0/3"), ("worker.slow", "run/node-0/3")]


def test_fault_workers_of_a_node_that_is_slow_now_and_then_are_one_and_no_work_that_wanders() -> None:
    def who(number: int) -> list[int]:
        return [4, 5, 6, 7] if number // 20 % 2 else []

    found = [claim for claim in claims(hot(who), hot(lambda number: [9] if number >= 110 else []), nodes=4, each=4, ticks=80, step_s=0.5) if claim.active]
    assert {claim.kind for claim in found} == {"worker.slow"}
    assert "run/node-2/1" in {claim.entity.name for claim in found}
