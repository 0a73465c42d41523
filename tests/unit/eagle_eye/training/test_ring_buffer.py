import errno
import math
import os
import random
import signal
import struct
import subprocess
import sys
import zlib
from contextlib import suppress
from pathlib import Path

import pytest

from eagle_eye.errors import RingError
from eagle_eye.training import ring_buffer
from eagle_eye.training.ring_buffer import MARKED, MARKS, PHASE, RUNNING, STEP, RingReader, RingWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ring"


def append(writer: RingWriter, number: int, **values: float) -> None:
    writer.append(number, (number + 1) * 10**9, {writer.column(name): value for name, value in values.items()})


def test_what_was_written_is_read(path: Path) -> None:
    writer = RingWriter.create(path, epoch=3, worker="run/a/0", offset_ns=100 * 10**9)
    append(writer, 7, loss=2.5, step_s=0.25)
    writer.now[STEP], writer.now[PHASE], writer.now[MARKED] = 8, 2, 9 * 10**9
    writer.now[RUNNING], writer.now[MARKS] = 1, 42
    with RingReader.open(path) as reader:
        assert (reader.header.pid, reader.header.epoch, reader.header.worker) == (os.getpid(), 3, "run/a/0")
        (record,) = reader.steps(after=-1)
        assert (record.number, record.epoch, record.end) == (7, 3, 108.0)
        assert record.values == {"loss": 2.5, "step_s": 0.25}
        now = reader.now()
        assert (now.step, now.phase, now.last_mark, now.marks, now.running) == (8, "forward", 109.0, 42, True)
        assert math.isnan(now.step_began)


def test_before_the_first_step_there_is_none(path: Path) -> None:
    RingWriter.create(path)
    with RingReader.open(path) as reader:
        assert reader.now().step == -1
        assert not reader.now().running
        assert reader.steps(-1) == []
        assert reader.error() is None


def test_nan_is_a_value_and_a_missing_number_is_none(path: Path) -> None:
    writer = RingWriter.create(path)
    append(writer, 0, loss=math.nan)
    with RingReader.open(path) as reader:
        values = reader.steps(-1)[0].values
    assert set(values) == {"loss"}
    assert math.isnan(values["loss"])


def test_a_name_that_comes_later_is_known_to_an_open_reader(path: Path) -> None:
    writer = RingWriter.create(path)
    with RingReader.open(path) as reader:
        append(writer, 0, accuracy=0.5)
        assert reader.steps(-1)[0].values == {"accuracy": 0.5}
        assert "accuracy" in reader.header.names


def test_names_beyond_the_width_are_refused_and_the_rest_goes_on(path: Path) -> None:
    writer = RingWriter.create(path)
    columns = [writer.column(f"name {number}") for number in range(ring_buffer.WIDTH)]
    assert columns[-1] == -1
    writer.append(0, 1, {columns[0]: 1.0, ring_buffer.WIDTH - 1: 2.0})
    with RingReader.open(path) as reader:
        assert reader.steps(-1)[0].values["name 0"] == 1.0


def test_only_steps_after_the_asked_one_and_no_more_than_fit(path: Path) -> None:
    writer = RingWriter.create(path)
    for number in range(ring_buffer.SLOTS + 10):
        append(writer, number, loss=float(number))
    with RingReader.open(path) as reader:
        assert [record.number for record in reader.steps(ring_buffer.SLOTS + 7)] == [ring_buffer.SLOTS + 8, ring_buffer.SLOTS + 9]
        every = reader.steps(-1)
    assert [record.number for record in every] == list(range(10, ring_buffer.SLOTS + 10))
    assert all(record.values["loss"] == record.number for record in every)


@pytest.mark.parametrize("offset", [0, 8, 20, 60])
def test_a_torn_record_is_left_out(path: Path, offset: int) -> None:
    writer = RingWriter.create(path)
    append(writer, 0, loss=1.0)
    append(writer, 1, loss=2.0)
    with path.open("r+b") as file:
        file.seek(ring_buffer.SLOTS_AT + 2 * ring_buffer.SLOT_BYTES + offset)
        file.write(b"\xff")
    with RingReader.open(path) as reader:
        assert [record.number for record in reader.steps(-1)] == [0]


def test_a_record_that_was_overwritten_while_it_was_looked_for_is_left_out(path: Path) -> None:
    writer = RingWriter.create(path)
    append(writer, 0, loss=1.0)
    body = struct.pack("<5q", 99, 0, 1, 0, 0)
    mark = struct.pack("<2q", 1 + ring_buffer.SLOTS, zlib.crc32(body, 1 + ring_buffer.SLOTS))
    with path.open("r+b") as file:
        file.seek(ring_buffer.SLOTS_AT + ring_buffer.SLOT_BYTES)
        file.write(mark + body)
    with RingReader.open(path) as reader:
        assert reader.steps(-1) == []


def test_what_ended_the_loop_is_read(path: Path) -> None:
    writer = RingWriter.create(path)
    writer.write_error({"type": "ValueError", "message": "bad", "step": 3})
    with RingReader.open(path) as reader:
        assert reader.error() == {"type": "ValueError", "message": "bad", "step": 3}
        with path.open("r+b") as file:
            file.seek(ring_buffer.ERROR_AT + 20)
            file.write(b"XX")
        assert reader.error() is None


def test_a_missing_ring_is_refused(path: Path) -> None:
    with pytest.raises(RingError, match="No such file"):
        RingReader.open(path)


def test_a_strangers_file_is_refused(path: Path) -> None:
    path.write_bytes(b"something else" * 100_000)
    with pytest.raises(RingError, match="no ring of Eagle Eye"):
        RingReader.open(path)


def test_another_version_is_refused_and_says_what_to_do(path: Path) -> None:
    RingWriter.create(path)
    with path.open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("<q", ring_buffer.VERSION + 1))
    with pytest.raises(RingError, match="use the same eagle-eye"):
        RingReader.open(path)


@pytest.mark.parametrize("size", [0, 5, 4000, 4096, ring_buffer.SIZE - 1])
def test_a_ring_cut_short_is_refused(path: Path, size: int) -> None:
    RingWriter.create(path)
    os.truncate(path, size)
    with pytest.raises(RingError):
        RingReader.open(path)


def test_a_ring_cut_short_under_an_open_reader_does_no_harm(path: Path) -> None:
    RingWriter.create(path)
    with RingReader.open(path) as reader:
        other = path.with_suffix(".cut")
        other.write_bytes(path.read_bytes()[:100])
        os.dup2(os.open(other, os.O_RDONLY), reader._file)
        with pytest.raises(RingError, match="cut short"):
            reader.now()


def test_alive_knows_a_process_from_another_with_its_pid(path: Path) -> None:
    RingWriter.create(path)
    with RingReader.open(path) as reader:
        assert reader.alive()
    RingWriter.create(path, start_time=ring_buffer.start_time_of(os.getpid()) + 1)
    with RingReader.open(path) as reader:
        assert not reader.alive()
    assert ring_buffer.start_time_of(2**22 + 1) == 0


def test_a_ring_outlives_the_sigkill_of_its_writer(path: Path) -> None:
    text = (
        "import os, signal, sys\n"
        "from eagle_eye.training.ring_buffer import RingWriter\n"
        f"writer = RingWriter.create({str(path)!r}, worker='w')\n"
        "for number in range(1000):\n"
        "    writer.append(number, number + 1, {9: 0.5})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", text], timeout=20).returncode == -9
    with RingReader.open(path) as reader:
        assert not reader.alive()
        assert reader.steps(-1)[-1].number == 999


def test_whatever_somebody_wrote_into_a_ring_is_read_or_refused(path: Path) -> None:
    writer = RingWriter.create(path, epoch=3, worker="run/a/0")
    for number in range(600):
        append(writer, number, loss=1.0, own=3.0)
    writer.write_error({"type": "ValueError", "message": "negative length"})
    whole, chance = path.read_bytes(), random.Random(1)
    words = (0, 1, -1, 57, 58, 512, 2**31, 2**62, 2**63 - 1, -(2**63))
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(chance.choice([1, 2, 5])):
            at = chance.choice([0, 512, 4096, 8192, 16384]) + 8 * chance.randrange(12)
            struct.pack_into("<q", data, at, chance.choice(words))
        path.write_bytes(data)
        with suppress(RingError), RingReader.open(path) as reader:
            reader.now()
            assert len(reader.steps(-1)) <= ring_buffer.SLOTS
            assert reader.error() in (None, {"type": "ValueError", "message": "negative length"})
            assert len(reader.header.names) <= ring_buffer.WIDTH


def test_an_error_that_is_nested_beyond_reading_is_none(path: Path) -> None:
    RingWriter.create(path).close()
    text = b"[" * 8000
    data = bytearray(path.read_bytes())
    data[ring_buffer.ERROR_AT + 16 : ring_buffer.ERROR_AT + 16 + len(text)] = text
    struct.pack_into("<2q", data, ring_buffer.ERROR_AT, len(text), zlib.crc32(text))
    path.write_bytes(data)
    with RingReader.open(path) as reader:
        assert reader.error() is None


def test_an_error_whose_text_has_no_encoding_can_be_written_on(path: Path) -> None:
    """A user's process may write anything; the agent, which reads it, is one for all."""
    writer = RingWriter.create(path)
    writer.write_error({"type": "ValueError", "message": "cannot parse caf\udce9.bin"})
    with RingReader.open(path) as reader:
        assert reader.error() == {"type": "ValueError", "message": "cannot parse caf?.bin"}


def test_a_ring_of_a_process_whose_name_was_cut_within_a_character(path: Path) -> None:
    """The kernel keeps 15 bytes of a name, whatever they are."""
    code = (
        "import ctypes, sys\n"
        "from eagle_eye.training.ring_buffer import RingWriter\n"
        "ctypes.CDLL(None).prctl(15, '训练任务甲乙'.encode()[:14])\n"
        "writer = RingWriter.create(sys.argv[1])\n"
        "print(flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        with RingReader.open(path) as reader:
            assert reader.alive()
        process.communicate(b"\n")


def test_a_ring_for_which_there_is_no_room_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each epoch left a part of one in shared memory, which is all that a container has of it."""

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space left"):
            RingWriter.create(tmp_path / "x.ring")
    assert list(tmp_path.iterdir()) == []
    RingWriter.create(tmp_path / "x.ring").close()
    assert [path.name for path in tmp_path.iterdir()] == ["x.ring"], "twin: with room"


def test_a_process_of_which_only_the_exit_status_is_left_is_not_alive(path: Path) -> None:
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    RingWriter.create(path, pid=pid)
    with RingReader.open(path) as reader:
        assert reader.alive()
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ring_buffer.start_time_of(pid) > 0, "it is still there"
        assert not reader.alive()
        os.waitpid(pid, 0)
    assert ring_buffer.start_time_of(pid) == 0
