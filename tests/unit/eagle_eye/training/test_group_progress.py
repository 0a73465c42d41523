"""Numbers of torch's process groups, from a torch on paper with the names and texts of torch 2.13."""

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.training import group_progress, live_flight_recorder
from eagle_eye.training.group_progress import GroupProgressReader


class Group:
    """torch.distributed.ProcessGroup."""

    def __init__(self, description: str, ranks: list[int], rank: int) -> None:
        self.group_desc = description
        self.ranks = ranks
        self._rank = ranks.index(rank)

    def rank(self) -> int:
        return self._rank


class World:
    """torch.distributed.distributed_c10d._world."""

    def __init__(self, groups: dict[str, Group]) -> None:
        self.pg_names = {group: name for name, group in groups.items()}
        self.pg_group_ranks = {group: {rank: place for place, rank in enumerate(group.ranks)} for group in groups.values()}


class Torch:
    """Its recorders: backend's number of a group → (name, description, begun, over)."""

    def __init__(self, groups: dict[str, Group], **recorded: dict[str, tuple[str, str, int, int]]) -> None:
        self.recorded = recorded
        self.searches = 0
        self._world = World(groups)
        for backend, name in group_progress.DUMPS.items():
            if backend in recorded:
                setattr(self, name, lambda collectives, _, backend=backend: self._dump(backend, collectives))

    def _dump(self, backend: str, collectives: bool) -> bytes:
        status = {
            number: {"last_completed_collective": str(over), "last_enqueued_collective": str(begun), "last_started_collective": "-1"}
            for number, (_, _, begun, over) in self.recorded[backend].items()
        }
        record: dict[str, Any] = {"pg_status": status, "version": "2.10"}
        if collectives:
            self.searches += 1
            record["entries"] = [{"op_id": 1, "pg_id": int(number), "process_group": [name, text]} for number, (name, text, *_) in self.recorded[backend].items()]
        return json.dumps(record, separators=(",", ":")).encode()

    @property
    def modules(self) -> dict[str, Any]:
        return {"torch._C._distributed_c10d": self, "torch.distributed.distributed_c10d": self}


GROUPS = {"0": Group("default_pg", [0, 1, 2, 3], 2), "3": Group("mesh_tp", [2, 3], 2)}


def backends(found: dict[str, Any] | None) -> list[dict[str, Any]]:
    assert found is not None
    return [group["backends"] for group in found["groups"]]


def test_each_group_has_its_place_and_its_numbers() -> None:
    torch = Torch(GROUPS, gloo={"0": ("0", "default_pg", 51, 50), "1": ("3", "mesh_tp", 7, 7)})
    found = GroupProgressReader(torch.modules).read()
    assert found is not None
    assert [(each["name"], each["description"], each["position"], each["size"]) for each in found["groups"]] == [("0", "default_pg", 2, 4), ("3", "mesh_tp", 0, 2)]
    assert backends(found) == [{"gloo": {"begun": 51, "over": 50, "pending_ns": 0}}, {"gloo": {"begun": 7, "over": 7, "pending_ns": 0}}]
    assert found["pid"] == os.getpid()


def test_members_are_told_apart_by_a_digest_that_is_the_same_at_all_of_them() -> None:
    def digests(groups: dict[str, Group]) -> list[str]:
        found = GroupProgressReader(Torch(groups, gloo={}).modules).read()
        assert found is not None
        return [group["members"] for group in found["groups"]]

    one, another = digests({"0": Group("g", [2, 3], 2)}), digests({"7": Group("g", [2, 3], 3)})
    assert one == another != digests({"0": Group("g", [2, 4], 2)})


def test_both_backends_of_a_group_count_by_themselves() -> None:
    """The numbers that they give their groups are not the same either."""
    torch = Torch(GROUPS, nccl={"5": ("0", "default_pg", 900, 899)}, gloo={"0": ("0", "default_pg", 3, 3)})
    (both, _) = backends(GroupProgressReader(torch.modules).read())
    assert {name: (each["begun"], each["over"]) for name, each in both.items()} == {"nccl": (900, 899), "gloo": (3, 3)}


def test_the_age_of_a_collective_that_is_not_over_grows_until_it_is() -> None:
    now = 10**9
    torch = Torch({"0": GROUPS["0"]}, gloo={"0": ("0", "default_pg", 5, 4)})
    reader = GroupProgressReader(torch.modules, lambda: now)

    def age_s(begun: int, over: int) -> float:
        torch.recorded["gloo"]["0"] = ("0", "default_pg", begun, over)
        (found,) = backends(reader.read())
        age: int = found["gloo"]["pending_ns"]
        return age / 1e9

    assert age_s(5, 4) == 0.0
    now += 3 * 10**9
    assert age_s(6, 4) == 3.0, "another was begun behind it"
    now += 10**9
    assert age_s(6, 5) == 0.0, "the next one is the oldest now"
    now += 10**9
    assert age_s(6, 6) == 0.0
    now += 10**9
    assert age_s(7, 6) == 0.0


def test_the_ring_is_searched_for_a_groups_name_once_and_seldom_for_one_that_it_does_not_have() -> None:
    now = 0
    torch = Torch(GROUPS, gloo={"0": ("0", "default_pg", 1, 1)})
    reader = GroupProgressReader(torch.modules, lambda: now)
    for _ in range(100):
        reader.read()
        now += 10**9
    assert torch.searches == 1
    torch._dump = lambda backend, collectives: b'{"pg_status":{"9":{"last_enqueued_collective":"1","last_completed_collective":"0"}}}'  # type: ignore[method-assign]
    searched = []
    del torch.searches
    torch._dump = lambda _, collectives: (searched.append(now) if collectives else None) or b'{"pg_status":{"9":{}}}'  # type: ignore[method-assign]
    for _ in range(3600):
        reader.read()
        now += 10**9
    assert 8 <= len(searched) <= 16, "an hour with a group whose name nobody knows"


@pytest.mark.parametrize("modules", [{}, {"torch.distributed.distributed_c10d": object()}, Torch({}, gloo={}).modules])
def test_without_groups_there_is_nothing_to_tell(modules: dict[str, Any]) -> None:
    assert GroupProgressReader(modules).read() is None


def test_a_number_of_before_the_first_collective_is_none() -> None:
    torch = Torch({"0": GROUPS["0"]}, nccl={"0": ("0", "default_pg", -1, -1)})
    assert backends(GroupProgressReader(torch.modules).read()) == [{"nccl": {"begun": 0, "over": 0, "pending_ns": 0}}]


def test_a_reader_never_sees_half_a_record(tmp_path: Path) -> None:
    path = tmp_path / "0.sock.groups"
    group_progress._write(path, {"groups": ["a" * 100_000]})
    group_progress._write(path, {"groups": []})
    assert json.loads(path.read_text()) == {"groups": []}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    before = threading.active_count()
    group_progress.begin(str(tmp_path / "x"), {"EAGLE_EYE_GROUPS": "0"})
    assert threading.active_count() == before


@pytest.mark.parametrize("served", [False, True])
def test_torchs_server_begins_with_the_groups_where_torch_came_behind_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: bool) -> None:
    torch, over = Torch(GROUPS, gloo={"0": ("0", "default_pg", 51, 50)}), threading.Event()
    asked: list[str] = []
    written: list[Path] = []

    def write(path: Path, _found: object) -> None:
        written.append(path)
        if len(written) == 3:
            over.set()

    monkeypatch.setattr(group_progress, "EVERY_S", 0.001)
    monkeypatch.setattr(group_progress, "sys", type("Sys", (), {"modules": torch.modules}))
    monkeypatch.setattr(group_progress, "_write", write)
    monkeypatch.setattr(live_flight_recorder, "serving", lambda: served)
    monkeypatch.setattr(live_flight_recorder, "serve", asked.append)
    group_progress._write_each_second(tmp_path / "w.sock.groups", over)
    assert asked == ([] if served else [str(tmp_path / "w.sock.fr")]), "once"


def test_a_torch_whose_parts_are_others_is_given_up_and_nobody_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Another:
        pg_names = 3

        def __getattr__(self, name: str) -> object:
            raise RuntimeError(name)

    monkeypatch.setattr(group_progress, "EVERY_S", 0.001)
    monkeypatch.setattr(group_progress, "sys", type("Sys", (), {"modules": {"torch._C._distributed_c10d": object(), "torch.distributed.distributed_c10d": Another()}}))
    thread = threading.Thread(target=group_progress._write_each_second, args=(tmp_path / "x", threading.Event()))
    thread.start()
    thread.join(30.0)
    assert not thread.is_alive()
    assert list(tmp_path.iterdir()) == []
