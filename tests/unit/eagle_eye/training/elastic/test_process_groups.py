"""Groups of elastic workers, several in this one process: what they compute, how they end, what they leave alone."""

import contextlib
import os
import select
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import PrefixStore

from eagle_eye.errors import Broken, Fenced
from eagle_eye.training import messages
from eagle_eye.training.elastic.epoch_protocol import EpochAssignment
from eagle_eye.training.elastic.launcher_session import LauncherSession
from eagle_eye.training.elastic.process_group import gloo
from eagle_eye.training.elastic.process_group.process_group import ProcessGroup, SingleProcessGroup, form
from eagle_eye.training.elastic.process_group.torch_group import TorchGroup
from eagle_eye.training.elastic.rendezvous.key_value_store import KeyValueStore
from eagle_eye.training.elastic.rendezvous.session_store import SessionStore
from fakes.launcher_sessions import FakeLauncher

NAMES = ("a", "b", "c")


class Party:
    """Workers of one process, each with a session and a thread of its own."""

    def __init__(self, launcher: FakeLauncher, *names: str) -> None:
        self.launcher = launcher
        self.sessions = {name: LauncherSession.connect(launcher.path, name, os.getpid()) for name in names}
        self.threads = ThreadPoolExecutor(len(names))
        for session in self.sessions.values():
            session.join(epoch=0, step=0, micro_batches=3, segments=1, layers=[], fresh=True)
        launcher.wait_for_joins(*names)

    def each(self, act: Callable[[LauncherSession], Any], *names: str) -> dict[str, "Future[Any]"]:
        return {name: self.threads.submit(act, self.sessions[name]) for name in names or self.sessions}

    def form(self, epoch: int, *names: str) -> dict[str, ProcessGroup]:
        self.launcher.form(epoch, *(names or self.sessions))
        return {
            name: future.result(30) for name, future in self.each(lambda session: meet(session, epoch), *names).items()
        }

    def close(self) -> None:
        for session in self.sessions.values():
            session.close()
        self.threads.shutdown()


def meet(session: LauncherSession, epoch: int) -> ProcessGroup:
    group = form(session, session.next_assignment(epoch - 1))
    session.use_group(group)
    return group


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLauncher]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory(prefix="elastic") as folder, FakeLauncher(f"{folder}/s") as made:
        yield made


@pytest.fixture
def party(launcher: FakeLauncher) -> Iterator[Party]:
    made = Party(launcher, *NAMES)
    yield made
    made.close()


def together(groups: dict[str, ProcessGroup], act: Callable[[ProcessGroup], Any]) -> list[Any]:
    """What each gets when all do it at once, by rank."""
    with ThreadPoolExecutor(len(groups)) as threads:
        return list(threads.map(act, sorted(groups.values(), key=lambda group: group.rank), timeout=30))


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        select.select([], [], [], 0.001)


def mine(group: ProcessGroup) -> torch.Tensor:
    return torch.tensor([float(group.rank + 1), 10.0])


def test_a_group_computes_what_it_says(party: Party) -> None:
    groups = party.form(1)

    def reduced(group: ProcessGroup) -> torch.Tensor:
        tensor = mine(group)
        group.all_reduce(tensor)
        return tensor

    def reduced_later(group: ProcessGroup) -> torch.Tensor:
        tensor = mine(group)
        group.all_reduce(tensor, wait=False).wait()
        return tensor

    def gathered(group: ProcessGroup) -> torch.Tensor:
        outputs = [torch.empty(2) for _ in range(group.world)]
        group.all_gather(outputs, mine(group))
        return torch.stack(outputs)

    def broadcast(group: ProcessGroup) -> torch.Tensor:
        tensor = mine(group)
        group.broadcast(tensor, 1)
        return tensor

    def passed_on(group: ProcessGroup) -> torch.Tensor:
        tensor = torch.empty(2)
        works = [group.send(mine(group), (group.rank + 1) % 3, 7), group.receive(tensor, (group.rank - 1) % 3, 7)]
        for work in works:
            work.wait()
        return tensor

    assert [each.tolist() for each in together(groups, reduced)] == [[6.0, 30.0]] * 3
    assert [each.tolist() for each in together(groups, reduced_later)] == [[6.0, 30.0]] * 3
    assert [each.tolist() for each in together(groups, gathered)] == [[[1.0, 10.0], [2.0, 10.0], [3.0, 10.0]]] * 3
    assert [each.tolist() for each in together(groups, broadcast)] == [[2.0, 10.0]] * 3
    assert [each.tolist() for each in together(groups, passed_on)] == [[3.0, 10.0], [1.0, 10.0], [2.0, 10.0]]


def test_a_fence_frees_who_is_stuck_and_the_next_group_works(party: Party) -> None:
    groups = party.form(1)
    stuck = party.threads.submit(groups["a"].all_reduce, torch.ones(2))  # the others never come
    party.launcher.fence(2, *NAMES)
    with pytest.raises(Broken, match="epoch 1"):
        stuck.result(30)
    groups = party.form(2, "a", "c")
    assert {name: (group.rank, group.world) for name, group in groups.items()} == {"a": (0, 2), "c": (1, 2)}
    assert [each.wait() for each in together(groups, lambda group: group.all_reduce(torch.ones(2)))] == [None, None]


def test_a_group_that_was_cut_says_so_at_once_and_again(party: Party) -> None:
    group = party.form(1)["a"]
    group.abort()
    group.abort()
    for act in (lambda: group.all_reduce(torch.ones(2)), lambda: group.broadcast(torch.ones(2), 0)):
        with pytest.raises(Broken, match="the group of epoch 1 was aborted"):
            act()


def test_sending_without_end_is_freed_too(party: Party) -> None:
    groups = party.form(1)
    waiting = groups["a"].receive(torch.empty(2), 1, 3)
    stuck = party.threads.submit(waiting.wait)
    groups["a"].abort()
    with pytest.raises(Broken):
        stuck.result(30)


def test_a_cut_leaves_every_other_socket_alone(party: Party) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = (socket.create_connection(server.getsockname()), server.accept()[0])
        groups = party.form(1)
        after = (socket.create_connection(server.getsockname()), server.accept()[0])
        for group in groups.values():
            group.abort()
        for each in (*before, *after):
            with pytest.raises(BlockingIOError):  # neither end, which would be reported at once, nor data
                each.recv(1, socket.MSG_DONTWAIT)
        for one, other in (before, after, after[::-1]):
            one.sendall(b"still here")
            assert other.recv(10) == b"still here"
        for each in (*before, *after):
            each.close()
    assert party.sessions["a"].ask_store(1, 30.0, op="count", keys=["1/"], values=[])["ok"]


def test_after_a_cut_no_socket_of_the_group_is_kept(party: Party) -> None:
    groups: list[ProcessGroup] = []
    gone = []
    for epoch in (1, 2, 3):
        formed = list(party.form(epoch).values())
        groups += formed
        gone += [weakref.ref(group._backend[0]) for group in formed]  # type: ignore[attr-defined]
    assert all(group._sockets for group in groups[-3:])  # type: ignore[attr-defined]
    for session in party.sessions.values():
        session.use_group(None)
    assert not any(group._sockets for group in groups)  # type: ignore[attr-defined]
    until(lambda: all(each() is None for each in gone), "the end of all backends")


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_sockets_are_known_by_either_end(family: socket.AddressFamily) -> None:
    with contextlib.ExitStack() as stack:
        host = "127.0.0.1" if family == socket.AF_INET else "::1"
        server = stack.enter_context(socket.create_server((host, 0), family=family))
        client = stack.enter_context(socket.create_connection(server.getsockname()[:2]))
        accepted = stack.enter_context(server.accept()[0])
        written = b"head" + gloo.sockaddr(family, server.getsockname()) + b"tail"
        found = [stack.enter_context(each) for each in gloo.sockets_of([written])]
        assert {each.getsockname() for each in found} == {client.getsockname(), accepted.getsockname()}
        assert gloo.sockets_of([b"nothing"]) == []


def test_construction_gives_up_for_a_newer_epoch(party: Party) -> None:
    party.launcher.form(1, *NAMES)
    alone = party.each(lambda session: meet(session, 1), "a")["a"]  # b and c never come
    party.launcher.wait_for("store", "a", op="get")
    party.launcher.fence(2, *NAMES)
    with pytest.raises(Fenced) as raised:
        alone.result(30)
    assert raised.value.epoch == 2
    assert [group.world for group in party.form(2, "a", "b").values()] == [2, 2]


def test_a_peer_that_listens_and_never_connects_is_left_for_a_newer_epoch(party: Party) -> None:
    """As a process that was stopped after it had published its address."""
    party.launcher.form(1, *NAMES)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = gloo.sockaddr(socket.AF_INET, silent.getsockname())
        store = SessionStore(party.sessions["c"], 1, 30.0)
        works = party.each(lambda session: meet(session, 1), "a", "b")
        template = PrefixStore("gloo", store).get("0/0")
        own = next(
            template[at : at + 8]
            for at in range(len(template))
            if template[at : at + 2] == b"\2\0" and template[at + 4 : at + 8] == b"\x7f\0\0\1"
        )
        PrefixStore("gloo", store).set("0/2", template.replace(own, address))
        for name in works:
            party.launcher.wait_for("store", name, op="get")
        party.launcher.fence(2, *NAMES)
        for work in works.values():  # who calls has a connection before it is answered, who is called has not
            assert isinstance(work.exception(30), Fenced | None)
    assert [group.world for group in party.form(2, "a", "b").values()] == [2, 2]


def test_a_group_that_cannot_be_built_in_time_is_broken(party: Party) -> None:
    party.launcher.form(1, *NAMES)
    session = party.sessions["a"]
    with pytest.raises(Broken, match="epoch 1"):
        gloo.form(session, session.next_assignment(0), timeout_s=0.2)


def test_a_group_of_one_needs_no_peer() -> None:
    group = form(Nobody(), EpochAssignment(4, 0, 1, ("a",), 0, ((0,),), ((0,),)))
    assert isinstance(group, SingleProcessGroup)
    tensor, outputs = torch.ones(2), [torch.zeros(2)]
    group.all_reduce(tensor).wait()
    group.all_gather(outputs, tensor)
    group.broadcast(tensor, 0)
    assert (tensor.tolist(), outputs[0].tolist()) == ([1.0, 1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="rank 1"):
        group.send(tensor, 1, 0)
    group.abort()
    with pytest.raises(Broken):
        group.all_reduce(tensor)


class Nobody:
    """A session that cannot be asked."""

    def check(self, epoch: int) -> None:
        """Nothing newer."""


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match="'mpi': one of gloo, nccl"):
        form(Nobody(), EpochAssignment(1, 0, 2, ("a", "b"), 0, ((), ()), ((), ())), "mpi")  # type: ignore[arg-type]


def test_the_store_in_torchs_words(party: Party) -> None:
    store = SessionStore(party.sessions["a"], 5, 30.0)
    prefixed = PrefixStore("x", store)  # as C++ asks
    prefixed.set("key", "value")
    assert prefixed.get("key") == b"value"
    assert [prefixed.add("count", 2), prefixed.add("count", 3)] == [2, 5]
    assert prefixed.check(["key"])
    assert not prefixed.check(["key", "other"])
    assert store.multi_get(["x/key", "x/count"]) == [b"value", b"5"]
    assert prefixed.num_keys() == 2
    assert prefixed.delete_key("key")
    assert not prefixed.check(["key"])
    with pytest.raises(TimeoutError):
        prefixed.wait(["never"], timedelta(seconds=0.01))
    assert SessionStore(party.sessions["a"], 6, 30.0).num_keys() == 0  # each epoch has its own


def test_addresses_are_asked_for_once(party: Party) -> None:
    party.form(1)
    questions = party.launcher.received("store", worker="a")
    assert [each["op"] for each in questions] == ["set", "get"]


def test_an_operation_that_torch_never_ends_blocks_no_worker() -> None:
    """gloo loses the end of a send whose connection breaks while it is begun."""
    release = threading.Event()

    class Lossy(TorchGroup):
        def _complete(self, issued: Any) -> None:
            release.wait()

        def _end(self) -> None:
            """In vain."""

    group = Lossy(Silent(), epoch=3, rank=0, world=2, device="cpu")
    with ThreadPoolExecutor(1) as threads:
        stuck = threads.submit(group.all_reduce, torch.ones(1))
        group.abort()
        with pytest.raises(Broken, match="the group of epoch 3 was aborted"):
            stuck.result(30)
    release.set()


class Silent:
    """A backend that begins everything."""

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> object:
        return object()


def heard() -> tuple[list[dict[str, Any]], Callable[[bytes], None]]:
    answers: list[dict[str, Any]] = []
    return answers, lambda line: answers.append(messages.decode(line))


def question(op: str, *keys: str, number: int = 1, worker: str = "a", timeout_s: float = 5.0) -> dict[str, Any]:
    return {"op": op, "id": number, "keys": list(keys), "values": ["MQ=="], "worker": worker, "timeout_s": timeout_s}


def test_the_store_answers_when_all_keys_are_there() -> None:
    keys, (answers, say) = KeyValueStore(), heard()
    keys.ask(question("get", "1/x", "1/y"), say, now=0.0)
    keys.ask(question("set", "1/x", number=2), say, now=1.0)
    assert [answer["id"] for answer in answers] == [2]
    keys.ask(question("set", "1/y", number=3), say, now=1.0)
    assert [(answer["id"], answer["ok"]) for answer in answers] == [(2, True), (3, True), (1, True)]
    assert answers[-1]["values"] == ["MQ==", "MQ=="]


def test_the_store_refuses_who_waits_too_long_and_what_it_does_not_know() -> None:
    keys, (answers, say) = KeyValueStore(), heard()
    keys.ask(question("wait", "1/x"), say, now=10.0)
    keys.expire(14.9)
    assert answers == []
    keys.expire(15.0)
    assert (answers[0]["ok"], answers[0]["error"]) == (False, "no worker has set 1/x")
    keys.ask(question("eval", "1/x"), say, now=15.0)
    assert answers[1]["error"] == "the store knows no 'eval'"


def test_the_store_forgets_who_is_gone_and_what_is_over() -> None:
    keys, (answers, say) = KeyValueStore(), heard()
    keys.ask(question("get", "2/x", worker="gone"), say, now=0.0)
    keys.forget_asker("gone")
    keys.ask(question("set", "1/x"), say, now=0.0)
    keys.ask(question("set", "2/x"), say, now=0.0)
    assert len(answers) == 2
    keys.forget_before(2)
    assert list(keys.values) == ["2/x"]
