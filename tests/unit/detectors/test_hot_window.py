"""The hot window: follows columns, reaches back so far and no further, holds no number twice."""

from dataclasses import replace

import numpy as np
import pytest

from detectors.runtime.hot_window import HotWindow
from eagle_eye.frames import Frame
from eagle_eye.types import Kind

NAN = float("nan")


def frame(number: int, rows: dict[str, float], before: tuple[str, ...] = (), name: str = "power_watts") -> Frame:
    entities = tuple(rows)
    return Frame(
        job="t/n/r",
        number=number,
        generation=1,
        time=float(number),
        tick=True,
        entities={Kind.GPU: entities},
        metrics={Kind.GPU: {name: np.array(list(rows.values()), dtype=np.float32)}},
        moved={Kind.GPU: np.array([before.index(e) if e in before else -1 for e in entities], dtype=np.int64)},
    )


def fill(window: HotWindow, *ticks: dict[str, float], first: int = 1) -> Frame:
    before: tuple[str, ...] = ()
    for number, rows in enumerate(ticks, first):
        last = window.add(frame(number, rows, before))
        before = tuple(rows)
    return last


def past(frame: Frame, seconds: float = 600.0, name: str = "power_watts") -> list[list[float]]:
    result = frame.past(Kind.GPU, name, seconds)
    assert result.dtype == np.float32
    rows: list[list[float]] = result.tolist()
    return rows


def test_past_is_ticks_by_present_columns_oldest_first() -> None:
    last = fill(HotWindow(), {"a": 1, "b": 10}, {"a": 2, "b": 20}, {"a": 3, "b": 30})
    assert past(last) == [[1, 10], [2, 20], [3, 30]]
    assert past(last, 2.0) == [[2, 20], [3, 30]]


def test_columns_follow_those_that_join_leave_and_move() -> None:
    last = fill(HotWindow(), {"a": 1, "b": 10}, {"b": 20, "c": 200}, {"c": 300, "b": 30, "a": 3})
    # a left and came back: it is a new column, whose past is unknown
    np.testing.assert_equal(past(last), [[NAN, 10, NAN], [200, 20, NAN], [300, 30, 3]])


def test_reach_is_bounded_by_seconds_whatever_the_number_of_ticks() -> None:
    window = HotWindow(seconds=5.0)
    last = fill(window, *({"a": float(number)} for number in range(1, 50)))
    assert past(last) == [[45], [46], [47], [48], [49]]
    later = window.add(replace(frame(50, {"a": 50.0}, ("a",)), time=1000.0))
    assert past(later) == [[50]]  # after an outage the ticks before it are too old


def test_reach_is_bounded_by_bytes() -> None:
    window = HotWindow(limit_bytes=10 * 4)
    last = fill(window, *({"a": 1.0, "b": 2.0} for _ in range(50)))
    assert (window.nbytes, len(past(last))) == (40, 5)


def test_it_holds_the_arrays_of_the_frames_and_no_copies() -> None:
    window = HotWindow()
    tick = frame(1, {"a": 1.0})
    window.add(tick)
    rows = window._kinds[Kind.GPU].rows
    assert rows[0].metrics["power_watts"] is tick.metrics[Kind.GPU]["power_watts"]


def test_a_name_that_was_not_there_is_not_a_number() -> None:
    window = HotWindow()
    window.add(frame(1, {"a": 1.0}, name="old"))
    last = window.add(frame(2, {"a": 2.0}, ("a",), name="new"))
    np.testing.assert_equal(past(last, name="new"), [[NAN], [2]])
    np.testing.assert_equal(past(last, name="old"), [[1], [NAN]])
    np.testing.assert_equal(past(last, name="never"), [[NAN], [NAN]])
    assert last.past(Kind.NODE, "power_watts", 10.0).size == 0


def test_only_the_newest_frame_has_a_past_and_a_cut_has_none() -> None:
    window = HotWindow()
    first = window.add(frame(1, {"a": 1.0}))
    cut = window.add(replace(frame(2, {}), tick=False))
    assert past(first) == [[1]]
    with pytest.raises(LookupError, match="only tick frames"):
        cut.past(Kind.GPU, "power_watts", 1.0)
    window.add(frame(3, {"a": 2.0}, ("a",)))
    with pytest.raises(LookupError, match="no longer the newest"):
        past(first)


def test_random_movements_agree_with_a_plain_dictionary() -> None:
    rng, window = np.random.default_rng(2), HotWindow(seconds=12.0)
    told: list[dict[str, float]] = []
    before: tuple[str, ...] = ()
    for number in range(1, 60):
        names = [name for name in "abcdef" if rng.random() < 0.8]
        rng.shuffle(names)
        rows = {name: float(rng.integers(0, 1000)) for name in names}
        last = window.add(frame(number, rows, before))
        for name in set(before) - set(rows):  # who leaves takes its past along
            for tick in told:
                tick.pop(name, None)
        told = [*told, dict(rows)][-12:]
        before = tuple(rows)
        expected = [[tick.get(name, NAN) for name in rows] for tick in told]
        np.testing.assert_equal(past(last), expected)
    assert len(window._kinds[Kind.GPU]._origins) <= 12  # what is forgotten leaves nothing behind


def test_of_no_seconds_nothing_is_kept() -> None:
    window = HotWindow(seconds=0.0)
    last = window.add(frame(1, {"a": 1.0}))
    assert window.nbytes == 0
    with pytest.raises(LookupError, match="past_s"):
        past(last)
