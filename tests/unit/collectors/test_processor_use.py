"""A worker without a ring that begins to use far less of the processor is noticed, once."""

from collectors.worker.processor_use import ProcessorUse

TICK_S = 0.01


def falls(*shares: tuple[float, float]) -> list[float]:
    """Moments at which it falls; (seconds, share of a processor) one after another, a sample each 0.2 s, in the kernel's ticks."""
    use, now, cpu_s, found = ProcessorUse(), 100.0, 0.0, list[float]()
    for seconds, share in shares:
        for _ in range(round(seconds / 0.2)):
            if use.falls(round(cpu_s / TICK_S) * TICK_S, now):
                found.append(round(now - 100.0, 1))
            now, cpu_s = now + 0.2, cpu_s + 0.2 * share
    return found


def test_a_training_loop_that_hangs_is_noticed_within_a_second_although_service_threads_go_on():
    [moment, *_] = falls((20.0, 0.06), (5.0, 0.01))
    assert 20.0 < moment <= 21.4


def test_a_loop_that_uses_all_of_a_processor_and_hangs_is_noticed():
    [moment, *_] = falls((20.0, 1.0), (5.0, 0.0))
    assert 20.0 < moment <= 21.4


def test_one_that_hangs_soon_after_its_start_is_noticed_although_it_started_with_far_more():
    assert any(6.0 < moment <= 7.4 for moment in falls((3.0, 1.0), (3.0, 0.06), (3.0, 0.0)))


def test_twin_a_steady_one_is_not_noticed_again_and_again():
    assert falls((60.0, 0.3)) == []
