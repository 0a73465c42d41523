"""Copies go over real sockets on loopback, between a server and a client of one process."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from eagle_eye.errors import AccessDenied, EagleEyeError
from eagle_eye.training.checkpoint.memory_segment import (
    PAGE,
    ROW,
    SLOTS,
    MemorySegment,
    SegmentFile,
    TornCopy,
    fetched_beside,
    rows_of,
    slot_bytes,
)
from remediation.checkpoint import backup_keeper, copy_client, copy_wire
from remediation.checkpoint.backup_keeper import OVERTAKEN, BackupFailure, BackupKeeper, BackupLimits
from remediation.checkpoint.copy_client import CopyChanged, CopyClient, CopyGone
from remediation.checkpoint.copy_files import CopyFiles, CopyName
from remediation.checkpoint.copy_search import Wanted, _bring
from remediation.checkpoint.copy_server import CopyServer
from remediation.checkpoint.copy_states import Place, StoredMark
from remediation.checkpoint.copy_wire import CopyConnection, Source

KEY = b"k" * 32
PAYLOAD = 3 * ROW + 100


def written(path: Path, steps: dict[int, int], *, rank: int = 0, finite: bool = True, payload: int = PAYLOAD, slots: int = SLOTS, replicated: bool = False, world: int = 2, epoch: int = 0) -> MemorySegment:
    """A segment with copies of these steps, by slot; its words are the step and their place."""
    segment = MemorySegment.create(path, slot_bytes(200, payload), "r/n0/0", slots)
    for sequence, (slot, step) in enumerate(steps.items(), 1):
        at, count = segment.payload_at(slot, payload), rows_of(payload) * ROW // 8
        words = np.arange(count, dtype=np.int64) * 7 + step
        segment.memory[at : at + 8 * count] = words.tobytes()
        table = msgspec.json.encode({"rank": rank, "world": world, "finite": finite, "step": step, "replicated": replicated, "epoch": epoch})
        segment.stamp(slot, step, sequence, table, words.reshape(-1, ROW // 8).sum(axis=1).tobytes(), payload)
    return segment


def payload_of(path: Path, step: int) -> bytes:
    with closing(MemorySegment.open(path)) as segment:
        content = next(content for slot in range(segment.slots) if (content := whole(segment, slot)) is not None and content.step == step)
        return bytes(segment.memory[content.payload_at : content.payload_at + content.payload_bytes])


def whole(segment: MemorySegment, slot: int):
    try:
        return segment.read(slot)
    except TornCopy:
        return None


class Node:
    """A folder, its server, and what that was told."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.settled: list[tuple[Place, int, bool, str]] = []
        self.due: list[CopyName] = []
        self.server = CopyServer("127.0.0.1", KEY, self.files, lambda *_: (self.due, StoredMark(4, 2)), lambda _node, *words: self.settled.append(words), lambda _: None, None)

    def files(self) -> CopyFiles:
        return CopyFiles(self.folder, "ee-", 1)

    @property
    def own(self) -> Path:
        return self.files().own_path(0)

    def names(self) -> list[CopyName]:
        with closing(self.files()) as files:
            return sorted(files.names(0, 2), key=lambda name: -name.step)

    def keeper(self, tell: list[BackupFailure], limit: int = 1 << 30, steps: int = SLOTS) -> BackupKeeper:
        return BackupKeeper(self.files(), "r/n1", lambda _: None, tell.append, lambda step, _: step, None, BackupLimits(limit, steps), threading.Event())


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    with ExitStack() as stack:
        pair = Node(tmp_path / "a"), Node(tmp_path / "b")
        for node in pair:
            stack.callback(node.server.close)
        yield pair


def keep(keeper: BackupKeeper, node: Node, name: CopyName) -> bool:
    client = CopyClient(node.server.source, None)
    with client.connected() as connection:
        return keeper._keep(client, connection, name, frozenset(), -1)


def test_a_copy_arrives_with_the_same_bits_and_comes_back_from_the_neighbour(nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_client, "PIECE", 2 * ROW)
    ours, neighbour = nodes
    written(ours.own, {0: 5, 1: 6}).close()
    told: list[BackupFailure] = []
    with closing(neighbour.keeper(told)) as keeper:
        for name in reversed(ours.names()):
            assert keep(keeper, ours, name)
    backup = neighbour.files().backup_path(0, 2)
    assert [(place, broken) for place, _, broken, _ in ours.settled] == [(Place(ours.own.name, 0), False), (Place(ours.own.name, 1), False)]
    before = {step: payload_of(ours.own, step) for step in (5, 6)}
    assert {step: payload_of(backup, step) for step in (5, 6)} == before
    assert (backup.stat().st_mode & 0o777, told) == (0o600, [])
    ours.own.unlink()
    wanted, reasons = Wanted(rank=0, world=2, path=ours.own, worker="r/n0/0"), []
    assert _bring(wanted, {"n0": ours.server.source, "n1": neighbour.server.source}, None, reasons) == "n1"
    fetched = ours.own.with_name("ee-0-fetched.memory")
    assert {step: payload_of(fetched, step) for step in (5, 6)} == before
    assert not reasons


def test_a_copy_that_its_worker_writes_anew_each_time_before_it_is_here_is_told_once_and_tried_less_often(nodes: tuple[Node, Node]) -> None:
    """As where the worker has memory for two copies alone: what is fetched gives way to the save after the next."""
    ours, neighbour = nodes
    written(ours.own, {0: 5, 1: 6}).close()
    overtaken, _ = ours.names()
    with closing(MemorySegment.open(ours.own)) as segment:
        content = segment.read(1)
        segment.stamp(1, 7, 9, content.table, content.sums, content.payload_bytes)
    told: list[BackupFailure] = []
    with closing(neighbour.keeper(told)) as keeper:
        assert [keep(keeper, ours, overtaken) for _ in range(OVERTAKEN + 2)] == [False] * (OVERTAKEN + 2)
        [failure] = told
        assert (failure.step, failure.retry_s, "make room for a third" in failure.failure.reason) == (6, 1.0, True)
        assert "make room for a third" in keeper.failing
        assert not ours.settled, "nothing is wrong with the copy"
        keeper._retry_at.clear()
        assert keep(keeper, ours, ours.names()[0])
        assert not keeper.failing


def test_bytes_that_changed_because_their_slot_is_written_anew_are_no_broken_copy(nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, neighbour = nodes
    segment = written(ours.own, {0: 5, 1: 6})
    name, _ = ours.names()

    def overtaken(*_: object) -> None:
        segment.clear(1)
        raise CopyChanged("bytes 0 to 65536 of the copy of step 6 are not as they were written")

    monkeypatch.setattr(CopyClient, "fetch", overtaken)
    with closing(neighbour.keeper([])) as keeper:
        assert not keep(keeper, ours, name)
    assert not ours.settled
    segment.close()


def test_a_flipped_bit_is_found_before_the_copy_is_visible(nodes: tuple[Node, Node]) -> None:
    ours, neighbour = nodes
    segment = written(ours.own, {0: 5, 1: 6})
    newest = segment.read(1)
    segment.memory[newest.payload_at + ROW + 17] ^= 4
    segment.close()
    with closing(neighbour.keeper([])) as keeper:
        assert keep(keeper, ours, ours.names()[0])
    [(place, sequence, broken, why)] = ours.settled
    assert (place.slot, sequence, broken) == (1, 2, True)
    assert f"bytes {ROW} to {2 * ROW}" in why
    assert not neighbour.names()


def test_a_damaged_copy_of_the_neighbour_is_left_out_and_the_older_one_taken(nodes: tuple[Node, Node]) -> None:
    ours, neighbour = nodes
    segment = written(neighbour.files().backup_path(0, 2), {0: 5, 1: 6})
    segment.memory[segment.read(1).payload_at] ^= 1
    segment.close()
    reasons: list[str] = []
    assert _bring(Wanted(rank=0, world=2, path=ours.own, worker="r/n0/0"), {"n1": neighbour.server.source}, None, reasons) == "n1"
    assert len(payload_of(ours.own.with_name("ee-0-fetched.memory"), 5)) == PAYLOAD
    assert "step 6" in reasons[0]


def test_steps_after_the_one_to_start_from_are_not_brought(nodes: tuple[Node, Node]) -> None:
    ours, neighbour = nodes
    written(neighbour.files().backup_path(0, 2), {0: 5, 1: 6}).close()
    wanted = Wanted(rank=0, world=2, path=ours.own, worker="r/n0/0", at_most=5)
    assert _bring(wanted, {"n1": neighbour.server.source}, None, []) == "n1"
    with closing(SegmentFile(ours.own.with_name("ee-0-fetched.memory"))) as fetched:
        assert [fetched.stamp(0).step, fetched.stamp(1)] == [5, None]
    assert not _bring(msgspec.structs.replace(wanted, rank=1), {"n1": neighbour.server.source}, None, []), "another rank's"


def test_where_all_ranks_hold_the_same_the_newest_that_any_node_holds_itself_is_brought(tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = {name: Node(tmp_path / name) for name in ("n0", "n1", "n2", "n3")}
        for node in nodes.values():
            stack.callback(node.server.close)
        for name, step in (("n1", 7), ("n2", 9), ("n3", 5)):
            written(nodes[name].own, {0: step}, rank=int(name[1]), world=1, replicated=True).close()
        written(nodes["n3"].files().backup_path(0, 1), {0: 11}, rank=0, world=1, replicated=True).close()
        sources = {name: node.server.source for name, node in nodes.items()} | {"n4": Source("127.0.0.1", 1, KEY)}
        ours = tmp_path / "ours" / "ee-n0-0.memory"
        ours.parent.mkdir()
        wanted, reasons = Wanted(rank=0, world=1, path=ours, worker="r/n0/0", replicated=True, newer_from=6), list[str]()
        assert _bring(wanted, sources, None, reasons) == "n2"
        with closing(SegmentFile(fetched_beside(ours))) as fetched:
            assert [fetched.stamp(0).step, fetched.stamp(1)] == [9, None]
        assert [why.partition(":")[0] for why in reasons] == ["n4"], "a node that does not answer"
        fetched_beside(ours).unlink()
        assert _bring(msgspec.structs.replace(wanted, newer_from=10), sources, None, []) == "", "nothing is newer than what is here"
        nodes["n2"].server.close()
        assert _bring(wanted, sources, None, []) == "n1"


def test_the_two_newest_steps_are_kept_and_those_of_an_abandoned_training_go(nodes: tuple[Node, Node]) -> None:
    ours, neighbour = nodes
    with closing(neighbour.keeper([])) as keeper:
        for step, kept in ((5, [5]), (6, [6, 5]), (7, [7, 6]), (6, [6, 6]), (3, [3])):
            ours.own.unlink(missing_ok=True)
            written(ours.own, {0: step}).close()
            assert keep(keeper, ours, ours.names()[0])
            assert [name.step for name in neighbour.names()] == kept


def test_a_connection_that_is_cut_is_made_again_and_goes_on_where_it_was(nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, neighbour = nodes
    payload = 12 << 20
    written(ours.own, {0: 5}, payload=payload).close()
    read, cut, pieces = CopyServer._read, [], []

    def cutting(self: CopyServer, connection: CopyConnection, name: CopyName, offset: int, *rest) -> None:
        if offset and not cut:
            cut.append(offset)
            connection.send({"length": 1 << 22})
            connection.socket.sendall(b"x" * 1000)
            connection.socket.shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError
        pieces.append(offset)
        read(self, connection, name, offset, *rest)

    monkeypatch.setattr(CopyServer, "_read", cutting)
    with closing(neighbour.keeper([])) as keeper:
        assert keep(keeper, ours, ours.names()[0])
    assert cut
    assert sorted(pieces) == [0, 4 << 20, 8 << 20], "each piece came once"
    assert payload_of(neighbour.files().backup_path(0, 2), 5) == payload_of(ours.own, 5)


def test_a_copy_that_was_written_anew_is_gone_and_nothing_of_it_is_visible(nodes: tuple[Node, Node]) -> None:
    ours, neighbour = nodes
    segment = written(ours.own, {0: 5})
    [name] = ours.names()
    client = CopyClient(ours.server.source, None)
    target = MemorySegment.create(neighbour.own, slot_bytes(200, PAYLOAD), "r/n1/0")
    with client.connected() as connection:
        description = client.describe(connection, name)
        segment.clear(0)
        with pytest.raises(CopyGone):
            client.fetch(name, description, target, 0, 1)
        with pytest.raises(CopyGone):
            client.describe(connection, name)
    assert whole(target, 0) is None
    target.close()
    segment.close()


def mapped(path: Path) -> bool:
    return any(line.rpartition(" (deleted)")[0].endswith(str(path)) or line.rstrip().endswith(str(path)) for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_segment_that_is_cut_short_while_it_is_sent_is_an_error_and_no_signal(nodes: tuple[Node, Node]) -> None:
    ours, _ = nodes
    written(ours.own, {0: 5}).close()
    [name] = ours.names()
    question = {"kind": "read", "name": msgspec.to_builtins(name), "offset": ROW, "length": ROW}
    with closing(CopyConnection.to(ours.server.source, None)) as connection:
        row = memoryview(bytearray(ROW))
        assert connection.ask(question) == {"length": ROW}
        connection.receive_into(row)
        os.truncate(ours.own, 2 * PAGE)
        assert connection.ask(question) == {"length": ROW}, "its description is there"
        with pytest.raises(ConnectionError):
            connection.receive_into(row)
        os.truncate(ours.own, PAGE)
    with closing(CopyConnection.to(ours.server.source, None)) as connection:
        assert connection.ask(question) == {"length": 0}


def test_memory_of_a_segment_that_is_removed_is_given_back(nodes: tuple[Node, Node]) -> None:
    ours, neighbour = nodes
    written(ours.own, {0: 5}).close()
    [name] = ours.names()
    with closing(neighbour.keeper([])) as keeper:
        assert keep(keeper, ours, name)
    with closing(CopyConnection.to(ours.server.source, None)) as connection:
        connection.ask({"kind": "due"})
        assert mapped(ours.own), "it is kept for the next copy"
        ours.own.unlink()
        connection.ask({"kind": "due"})
        assert not mapped(ours.own)


def test_little_of_a_copy_waits_in_the_kernel_to_be_sent(nodes: tuple[Node, Node]) -> None:
    with CopyClient(nodes[0].server.source, None).connected() as connection:
        assert connection.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == copy_wire.UNSENT


def test_an_end_that_sends_or_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_wire, "TIMEOUT_S", 0.02)
    ours, theirs = socket.socketpair()
    with theirs, closing(CopyConnection(ours, KEY, KEY)) as connection:
        with pytest.raises(TimeoutError, match="sent nothing"):
            connection.receive()
        with pytest.raises(TimeoutError, match="took nothing"):
            connection.send_bytes(bytes(1 << 23))


def test_who_has_not_the_key_gets_nothing(nodes: tuple[Node, Node]) -> None:
    ours, _ = nodes
    host, port, _ = ours.server.source
    with pytest.raises((AccessDenied, OSError)):
        CopyConnection.to(Source(host, port, b"x" * 32), None)


def test_a_message_that_was_changed_is_refused(nodes: tuple[Node, Node]) -> None:
    ours, _ = nodes
    with closing(CopyConnection.to(ours.server.source, None)) as connection:
        connection._sent += 1  # as if a message had been left out
        connection.send({"kind": "due"})
        with pytest.raises(ConnectionError):
            connection.receive()


@pytest.mark.parametrize("question", [{"kind": "write"}, {"kind": "describe", "name": {"file": "../../etc/passwd"}}, {"kind": "list"}, {"kind": "settled", "file": 1}])
def test_a_question_that_is_none_ends_the_connection(nodes: tuple[Node, Node], question: dict) -> None:
    with closing(CopyConnection.to(nodes[0].server.source, None)) as connection:
        connection.send(question)
        with pytest.raises(ConnectionError):
            connection.receive()


def test_a_path_out_of_the_folder_is_no_copy(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    ours, _ = nodes
    written(ours.own, {0: 5}).close()
    [name] = ours.names()
    written(tmp_path / "other.memory", {0: 5}).close()
    client = CopyClient(ours.server.source, None)
    with client.connected() as connection, pytest.raises((CopyGone, EagleEyeError, ConnectionError)):
        client.describe(connection, msgspec.structs.replace(name, file="../other.memory"))


def test_what_does_not_fit_under_the_limit_is_told_once_with_path_and_bytes(nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, neighbour = nodes
    written(ours.own, {0: 5}).close()
    told: list[BackupFailure] = []
    [name] = ours.names()
    monkeypatch.setattr(backup_keeper, "FIRST_S", 0.0)
    with closing(neighbour.keeper(told, limit=1000)) as keeper:
        assert not keep(keeper, ours, name)
        assert not keep(keeper, ours, name)
    [failure] = told
    assert (failure.step, failure.failure.errno, failure.failure.path) == (5, "ENOMEM", str(neighbour.files().backup_path(0, 2)))
    assert failure.needed_bytes > 2 * PAYLOAD
    assert failure.failure.free_bytes > 0
    assert "1000 bytes at the most (checkpoints.backup_share), and 2 steps of this worker need" in failure.failure.reason


def steps_of(path: Path) -> tuple[int, list[int]]:
    """How many slots it has, and what is in them."""
    with closing(SegmentFile(path)) as segment:
        return segment.slots, sorted(stamp.step for slot in range(segment.slots) if (stamp := segment.stamp(slot)) is not None)


def keep_all(keeper: BackupKeeper, ours: Node, *steps: int, stored: int = -1) -> None:
    client = CopyClient(ours.server.source, None)
    for step in steps:
        ours.own.unlink(missing_ok=True)
        written(ours.own, {0: step}).close()
        [name] = ours.names()
        with client.connected() as connection:
            assert keeper._keep(client, connection, name, frozenset(), stored)


@pytest.mark.parametrize("steps", [2, 4])
def test_so_many_steps_are_kept_as_are_configured(nodes: tuple[Node, Node], steps: int) -> None:
    ours, neighbour = nodes
    with closing(neighbour.keeper([], steps=steps)) as keeper:
        keep_all(keeper, ours, *range(1, 8))
    assert steps_of(neighbour.files().backup_path(0, 2)) == (steps, list(range(8 - steps, 8)))
    assert payload_of(neighbour.files().backup_path(0, 2), 8 - steps)


def test_where_there_is_no_room_for_so_many_steps_two_are_kept_and_it_is_said(nodes: tuple[Node, Node], caplog: pytest.LogCaptureFixture) -> None:
    ours, neighbour = nodes
    told: list[BackupFailure] = []
    with caplog.at_level("WARNING"), closing(neighbour.keeper(told, limit=3 * slot_bytes(200, PAYLOAD), steps=8)) as keeper:
        keep_all(keeper, ours, *range(1, 5), stored=4)
    assert steps_of(neighbour.files().backup_path(0, 2)) == (2, [3, 4])
    assert not told
    [record] = [record.getMessage() for record in caplog.records]
    assert "keeps 2 steps, not 8 (checkpoints.backup_steps)" in record
    assert "checkpoints.backup_share" in record
    assert "raise it, or lower checkpoints.backup_steps" in record


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
def test_a_launcher_that_is_to_keep_another_number_of_steps_drops_none_that_storage_lacks(nodes: tuple[Node, Node], before: int, after: int) -> None:
    ours, neighbour = nodes
    path = neighbour.files().backup_path(0, 2)
    with closing(neighbour.keeper([], steps=before)) as keeper:
        keep_all(keeper, ours, 1, 2, 3)
    with closing(neighbour.keeper([], steps=after)) as keeper:
        keep_all(keeper, ours, 4, stored=2)
        assert steps_of(path) == (before, list(range(5 - min(before, 4), 5))), "step 3 is not in storage"
        keep_all(keeper, ours, 5, stored=4)
        assert steps_of(path) == (after, [5])


def test_copies_of_a_node_that_is_another_ones_now_go_when_newer_ones_are_here_and_storage_has_them(nodes: tuple[Node, Node]) -> None:
    ours, neighbour = nodes
    old = neighbour.files().backup_path(1, 3)
    written(old, {0: 1}, rank=1, world=3).close()
    with closing(neighbour.keeper([])) as keeper:
        keep_all(keeper, ours, 2)
        keeper._clear(frozenset(), 1)
        assert old.exists(), "one newer step is here, and two are kept"
        written(neighbour.files().backup_path(1, 2), {0: 3}, rank=1).close()
        keeper._clear(frozenset(), 0)
        assert old.exists(), "storage does not have its step"
        keeper._clear(frozenset(), 1)
    assert not old.exists()
    assert steps_of(neighbour.files().backup_path(0, 2)) == (2, [2])


def test_a_copy_that_is_not_finite_has_no_name(nodes: tuple[Node, Node]) -> None:
    ours, _ = nodes
    written(ours.own, {0: 5}, finite=False).close()
    assert not ours.names()


def test_the_worker_leaves_a_held_copy_as_it_is(tmp_path: Path) -> None:
    with closing(written(tmp_path / "0.memory", {0: 5, 1: 6})) as segment, closing(SegmentFile(tmp_path / "0.memory")) as file:
        assert not segment.is_held(0)
        file.hold(0, 1, 60.0)
        assert (segment.is_held(0), segment.is_held(1)) == (True, False)
        file.hold(0, 2, 60.0)
        assert not segment.is_held(0), "another copy was meant"
        file.hold(0, 1, 0.0)
        assert not segment.is_held(0)


def test_a_file_that_is_no_segment_or_is_cut_short_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"x" * 3 * PAGE, b"EEMEMCKP" + bytes(3 * PAGE)):
        (tmp_path / "0.memory").write_bytes(content)
        (tmp_path / "0.memory").chmod(0o600)
        with pytest.raises(OSError, match=r"segment|another"):
            SegmentFile(tmp_path / "0.memory")


def test_a_changed_sum_is_seen_by_the_client(nodes: tuple[Node, Node]) -> None:
    ours, neighbour = nodes
    written(ours.own, {0: 5}).close()
    [name] = ours.names()
    client = CopyClient(ours.server.source, None)
    with closing(MemorySegment.create(neighbour.own, slot_bytes(200, PAYLOAD), "r/n1/0")) as target, client.connected() as connection:
        description = client.describe(connection, name)
        with pytest.raises(CopyChanged):
            client.fetch(name, description._replace(sums=bytes(len(description.sums))), target, 0, 1)
        assert whole(target, 0) is None


@pytest.mark.parametrize(("answer", "known"), [({"copies": [], "stored": 7, "stored_epoch": 3}, (7, 3)), ({"copies": [], "stored": 7}, (7, 0)), ({"copies": []}, (-1, 0))])
def test_an_older_launcher_that_says_no_epoch_of_what_is_stored_is_understood(nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], known: tuple[int, int]) -> None:
    ours, neighbour = nodes
    heard: list[tuple[int, int]] = []
    stop = threading.Event()

    def stored(step: int, epoch: int) -> int:
        heard.append((step, epoch))
        stop.set()
        return step

    monkeypatch.setattr(CopyConnection, "ask", lambda *_: answer)
    source = ours.server.source
    keeper = BackupKeeper(neighbour.files(), "r/n1", lambda _: source, lambda _: None, stored, None, BackupLimits(1 << 30), stop)
    with closing(keeper):
        keeper._follow(source)
    assert heard == [known]
