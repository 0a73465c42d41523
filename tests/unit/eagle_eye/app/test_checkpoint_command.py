"""`eagle-eye checkpoint` on checkpoints that are whole, damaged, cut off, of a newer version, or not there."""

import errno
import json
import os
import re
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from fsspec.implementations.memory import MemoryFileSystem

from eagle_eye.app.cli import main
from eagle_eye.checkpoint_safety import NodeSafety, SafeStep
from eagle_eye.ledger import Ledger
from eagle_eye.training import checkpoint
from eagle_eye.types import Layout, RankPlacement

Cli = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the checkpoints of steps 10, 20 and 30; that of 30 by two ranks."""
    for name in ("EAGLE_EYE_CHECKPOINT_DIR", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("eagle_eye.training.checkpoint.checkpoint_writer.checkpoint_directory.prune", lambda *_, **__: None)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "gpt"
    for step in (10, 20):
        checkpoint.save({"w": torch.full((4,), float(step))}, step, home)
    for rank in range(2):
        state = {"w": checkpoint.LocalTensor(torch.full((2,), 30.0), checkpoint.Region((2 * rank,), (2,)), (4,))}
        checkpoint.save_shard(state, 30, home, rank=rank, world_size=2, run="a", layout={"dp": 2}, data_position={"sample": 7})
    return home


def typed(*words: object) -> Result:
    """`eagle-eye checkpoint WORDS`."""
    result = CliRunner().invoke(main, ["checkpoint", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), "a bug shows its traceback"
    return result


def shard_of(home: Path, step: int) -> Path:
    return next(entry for entry in checkpoint.entries(home) if entry.step == step).shards[-1]


def harm(home: Path, step: int) -> None:
    """Flip a bit; the size stays."""
    path = shard_of(home, step)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def steps(home: Path) -> list[int]:
    return [entry.step for entry in checkpoint.entries(home)]


def test_ls_lists_them_and_what_is_cut_off(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.truncate(shard_of(home, 20), 9)
    (home / "step-000000000040.json").write_text('{"version": 3}')
    shown = typed("ls", home)
    assert shown.exit_code == 0
    assert "has 9 of " in shown.output
    assert "step-000000000040.json has format version 3, this program reads up to 2" in shown.output
    monkeypatch.setenv("EAGLE_EYE_CHECKPOINT_DIR", str(home))
    lines = [json.loads(line) for line in typed("ls", "--json").stdout.splitlines()]
    assert [(line.get("step"), line.get("ranks"), bool(line["damage"])) for line in lines] == [(10, 1, False), (20, 1, True), (30, 2, False), (None, None, True)]


def test_ls_lists_what_was_stored_from_memory_and_says_which_is_the_newest_that_can_be_loaded(home: Path) -> None:
    assert "the newest that can be loaded: step 30, saved" in typed("ls", home).output
    checkpoint.save({"w": torch.ones(4)}, 50, home / "memory")
    checkpoint.save({"w": torch.full((4,), torch.nan)}, 60, home / "memory")
    checkpoint.save({"w": torch.ones(4)}, 70, home / "memory")
    os.truncate(shard_of(home / "memory", 70), 9)
    shown = typed("ls", home).output
    assert f"stored from memory, in {home / 'memory'}:" in shown
    assert "can be loaded: step 50, saved" in shown
    assert shown.rstrip().endswith(f"in {home / 'memory'}")
    assert [json.loads(line)["step"] for line in typed("ls", home, "--json").stdout.splitlines()] == [10, 20, 30, 50, 60, 70]


def test_interval_is_that_of_the_formula() -> None:
    """Daly (2006), with a dump of five minutes and a failure a day: 116.7 minutes."""
    shown = typed("interval", "--save-s", 300, "--failures", 2, "--hours", 48, "--now-s", 36000).output
    assert "save every 7,001 s (Daly; Young: 7,200 s): 8.34% of the time is lost" in shown
    assert "a failure every 24.0 h: 2 failures in 48.0 h" in shown
    assert "every 36,000 s, as now: 21.67%" in shown
    told = json.loads(typed("interval", "--save-s", 300, "--failures", 2, "--hours", 48, "--json").stdout)
    assert (round(told["interval_s"]), told["mtbf_s"], told["loss_now"]) == (7001, 86400.0, None)
    assert typed("interval", "--save-s", 0, "--failures", 2, "--hours", 48).exit_code == 2


def test_where_there_is_no_directory_or_nothing_in_it_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EAGLE_EYE_CHECKPOINT_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    missing = typed("ls")
    assert (missing.exit_code, "there is no directory checkpoints: name the one" in missing.output) == (1, True)
    assert typed("ls", tmp_path).output == f"no checkpoint in {tmp_path}\n"
    assert f"there is no checkpoint in {tmp_path}; there: none" in typed("show", tmp_path).output
    assert typed("prune", tmp_path).output == "nothing to delete\n"


def test_verify_finds_a_flipped_bit_and_no_other(home: Path) -> None:
    assert typed("verify", home).exit_code == 0
    harm(home, 20)
    assert "complete" in typed("ls", home).output, "sizes alone do not tell"
    found = typed("verify", home, "--json")
    assert found.exit_code == 1
    assert [(line["step"], "was changed since" in line["damage"]) for line in map(json.loads, found.stdout.splitlines())] == [(10, False), (20, True), (30, False)]
    assert typed("verify", home, "--step", 30).exit_code == 0
    assert typed("verify", home, "--step", 20).exit_code == 1


def test_verify_reads_what_was_stored_from_memory_too(home: Path) -> None:
    for step in (50, 60):
        checkpoint.save({"w": torch.full((4,), float(step))}, step, home / "memory")
    assert typed("verify", home).exit_code == 0
    harm(home / "memory", 50)
    found = typed("verify", home, "--json")
    assert (found.exit_code, [json.loads(line)["step"] for line in found.stdout.splitlines()]) == (1, [10, 20, 30, 50, 60])
    assert f"stored from memory, in {home / 'memory'}:" in typed("verify", home).output
    assert [typed("verify", home, "--step", step).exit_code for step in (50, 60, 10)] == [1, 0, 0]


def test_where_nothing_is_verified_it_says_so_and_fails(tmp_path: Path) -> None:
    found = typed("verify", tmp_path)
    assert (found.exit_code, f"there is no checkpoint in {tmp_path}: nothing was verified" in found.output) == (1, True)
    checkpoint.save({"w": torch.ones(4)}, 50, tmp_path / "memory")
    assert typed("verify", tmp_path).exit_code == 0
    missing = typed("verify", tmp_path, "--step", 7)
    assert (missing.exit_code, f"in {tmp_path / 'memory'}, stored from memory: 50; name that directory" in missing.output) == (1, True)


@pytest.mark.parametrize("target", ["a file", "/proc/there is no such place"])
def test_where_nothing_can_be_written_it_is_one_line(home: Path, target: str) -> None:
    Path("a file").write_text("kept")
    for words in (("copy", home, target), ("convert", home, Path(target) / "x.pt", "--to", "torch")):
        told = typed(*words)
        assert told.exit_code == 1
        assert "Error: nothing " in told.output
        assert len(told.output.splitlines()) == 1
    assert Path("a file").read_text() == "kept"


def test_show_says_what_one_holds(home: Path) -> None:
    shown = typed("show", home).output
    for part in ("step 30, epoch 0", "saved by 2 rank(s) (dp 2)", 'data position {"sample": 7}', "rank 1: step-000000000030-0-1-", "state.w"):
        assert part in shown
    facts = json.loads(typed("show", home, "--step", 10, "--json").stdout)
    assert (facts["step"], facts["tensors"]) == (10, {"state.w": {"dtype": "F32", "shape": [4], "shards": [0]}})
    assert "there is no checkpoint of step 11 in" in typed("show", home, "--step", 11).output


def test_commands_take_a_url_and_what_is_copied_there_and_back_is_the_same(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    there, back = "memory://models/gpt", tmp_path / "back"
    for step in (10, 30):
        assert typed("copy", home, there, "--step", step).exit_code == 0
    assert "is there already" in typed("copy", home, there, "--step", 30).output
    assert steps(there) == [10, 30]
    assert "the newest that can be loaded: step 30, saved" in typed("ls", there).output
    assert "saved by 2 rank(s) (dp 2)" in typed("show", there).output
    assert typed("verify", there).exit_code == 0
    assert typed("copy", there, back).exit_code == 0
    for shard in checkpoint.entries(back)[0].shards:
        assert shard.read_bytes() == (home / shard.name).read_bytes()
    assert checkpoint.load(back)[0]["w"].tolist() == [30.0] * 4
    assert "deleted: step 10" in typed("prune", there, "--keep", 1).output
    assert len(MemoryFileSystem.store) == 3, "a manifest and two shards"
    harmed = shard_of(there, 30)
    harmed.put(harmed.read_bytes()[:-1] + b"x")
    assert typed("verify", there).exit_code == 1
    again = typed("copy", there, "memory://models/other")
    assert (again.exit_code, "nothing was copied" in again.output) == (1, True)
    assert len(MemoryFileSystem.store) == 3, "nor was anything left"
    assert typed("convert", there, "memory://x.pt", "--to", "torch").output.startswith("Error: memory://x.pt is a URL")
    missing = typed("ls", "memory://nothing")
    assert (missing.exit_code, "there is no directory memory://nothing" in missing.output) == (1, True)


def test_a_store_that_cannot_be_used_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    for words, told in ((("ls", "s3://models/gpt"), "pip install 'eagle-eye[s3]'"), (("verify", "nothing://gpt"), "Protocol not known: nothing")):
        found = typed(*words)
        assert (found.exit_code, told in found.output, len(found.output.splitlines())) == (1, True, 1)


def test_what_is_copied_is_loaded_there_and_nothing_is_overwritten(home: Path, tmp_path: Path) -> None:
    assert typed("copy", home, tmp_path / "archive").exit_code == 0
    found = checkpoint.load(tmp_path / "archive")
    assert found is not None
    assert (found[0]["w"].tolist(), found[1]) == ([30.0] * 4, 30)
    again = typed("copy", home, tmp_path / "archive")
    assert (again.exit_code, "is there already" in again.output) == (1, True)
    assert steps(tmp_path / "archive") == [30]
    checkpoint.save({"w": torch.zeros(4)}, 10, tmp_path / "archive")
    other = typed("copy", home, tmp_path / "archive", "--step", 10)
    assert (other.exit_code, "step-000000000010.json is there already" in other.output) == (1, True), "of another run, with shards of other names"
    assert checkpoint.load(tmp_path / "archive", at_most=10)[0]["w"].tolist() == [0.0] * 4


def test_a_damaged_one_is_not_copied_and_leaves_nothing_behind(home: Path, tmp_path: Path) -> None:
    harm(home, 30)
    refused = typed("copy", home, tmp_path / "archive")
    assert (refused.exit_code, "nothing was copied" in refused.output) == (1, True)
    assert list((tmp_path / "archive").iterdir()) == []


def test_prune_keeps_the_newest_whole_ones(home: Path) -> None:
    assert "would be deleted: step 10" in typed("prune", home, "--dry-run").output
    assert steps(home) == [10, 20, 30]
    assert "deleted: step 10" in typed("prune", home).output
    assert steps(home) == [20, 30]
    assert len(list(home.iterdir())) == 5, "and no shard of it is left"


def test_prune_counts_no_damaged_one_as_kept(home: Path) -> None:
    harm(home, 30)
    pruned = typed("prune", home, "--keep", 1)
    assert "deleted: step 10" in pruned.output
    assert "left as it is: step 30" in pruned.output
    assert steps(home) == [20, 30]
    harm(home, 20)
    nothing = typed("prune", home, "--keep", 1)
    assert (nothing.exit_code, "no checkpoint is whole: nothing is deleted" in nothing.output) == (1, True)
    assert steps(home) == [20, 30]


def test_prune_leaves_one_that_storage_does_not_let_it_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be whole, and was kept for its span; the twin, whose shard is gone, is deleted."""
    [shard, *_] = home.glob("step-000000000010-*")
    real = checkpoint.shard_file.verify

    def verify(folder: Path, named: Any, advance: Callable[[int], None]) -> None:
        if named.name == shard.name:
            raise OSError(errno.EIO, "Input/output error", str(shard))
        real(folder, named, advance)

    with monkeypatch.context() as refused:
        refused.setattr("eagle_eye.app.checkpoint_files.shard_file.verify", verify)
        pruned = typed("prune", home, "--keep", 1)
    assert "deleted: step 20" in pruned.output
    assert "left as it is: step 10" in pruned.output
    assert "Input/output error" in pruned.output
    shard.unlink()
    assert "deleted: step 10" in typed("prune", home, "--keep", 1).output


def test_ls_tells_what_storage_does_not_say(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.stat

    def stat(path: Path, **how: Any) -> Any:
        if path.name.startswith("step-000000000020-"):
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return real(path, **how)

    monkeypatch.setattr(Path, "stat", stat)
    listed = typed("ls", home)
    assert "cannot be read now: Stale file handle" in " ".join(listed.output.split())
    assert listed.exit_code == 0


@pytest.mark.parametrize("hours", ["nan", "inf", "1e-321", "0.0009"])
def test_prune_names_the_option_whose_hours_are_none(home: Path, hours: str) -> None:
    refused = typed("prune", home, "--keep-hours", hours)
    assert (refused.exit_code, "--keep-hours" in refused.output) == (2, True)
    assert typed("prune", home, "--keep", 3, "--keep-hours", "0.001").output == "nothing to delete\n"


def test_prune_keeps_the_newest_finite_one(home: Path) -> None:
    for step in (40, 50):
        checkpoint.save({"w": torch.full((4,), float("nan"))}, step, home)
    typed("prune", home, "--keep", 2)
    assert steps(home) == [30, 40, 50]


def test_prune_keeps_the_first_of_each_span_of_steps(home: Path) -> None:
    assert "deleted: step 20" in typed("prune", home, "--keep", 1, "--keep-steps", 1000).output
    assert steps(home) == [10, 30]
    assert "nothing to delete" in typed("prune", home, "--keep", 1, "--keep-hours", 1e5).output
    typed("prune", home, "--keep", 1)
    assert steps(home) == [30]


def test_status_shows_what_is_safe_of_jobs_that_run_and_what_keeps_it_from_being_newer(home: Path, ledger_path: Path) -> None:
    nothing = typed("status", "--state-dir", ledger_path.parent)
    assert "no running job has told of a checkpoint" in nothing.output
    placements = tuple(RankPlacement(worker=f"7/{node}/0", node=node, rank=rank, local_rank=0) for rank, node in enumerate(("n0", "n1")))
    layout = Layout(job="team/gpt/7", epoch=1, time=1.0, coordinator="n0", launchers={"n0": "", "n1": ""}, placements=placements)
    tiers = {"memory": SafeStep(step=120, time=time.time() - 3600.0), "storage": SafeStep(failure="No space left on device")}
    with closing(Ledger.open(ledger_path)) as ledger:
        ledger.save_job(layout.job, layout, "n0:1", "restart:3", 3)
        ledger.save_safety([NodeSafety(job=job, node=node, time=2.0, tiers=tiers, kept_by="n1", shared="host h" if node == "n0" else "") for node in ("n0", "n1") for job in (layout.job, "team/over/1")])
    lines = [line.split(maxsplit=4) for line in typed("status", "--state-dir", ledger_path.parent).output.splitlines()]
    assert lines[1] == ["team/gpt/7", "in", "memory", "120", "1h"]
    assert lines[2] == ["team/gpt/7", "in", "storage", "none", "n0: No space left on device; n1: No space left on device"]
    assert " ".join(lines[3]) == "team/gpt/7: both copies of n0 and n1 on host h: if that fails, the job goes on from storage"
    assert len(lines) == 4
    [told] = map(json.loads, typed("status", "--json", "--job", "team/over/1", "--state-dir", ledger_path.parent).output.splitlines())
    assert (told["job"], told["tiers"]["memory"]["step"]) == ("team/over/1", 120)
    assert "is the name right" in typed("status", "--job", "team/none/1", "--state-dir", ledger_path.parent).output


def rewritten(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    """A manifest as a stranger would seal it."""
    text = path.read_text()
    plain = json.loads(text[: text.rindex(', "manifest_crc32"')] + "}")
    change(plain)
    text = json.dumps(plain)
    path.write_text(f'{text[:-1]}, "manifest_crc32": {zlib.crc32(text.encode())}}}')


@pytest.mark.parametrize("rest", [{"$float": "abc"}, {"$items": 7}, {"$tuple": 5}])
def test_a_state_that_cannot_be_put_together_is_neither_whole_nor_the_newest(home: Path, rest: dict[str, object]) -> None:
    rewritten(home / "step-000000000030.json", lambda plain: plain["rest"].update(more=rest))  # type: ignore[attr-defined]
    listed, verified = typed("ls", home), typed("verify", home)
    assert "the newest that can be loaded: step 20," in listed.output
    assert (verified.exit_code, "does not say how its state is nested" in verified.output) == (1, True)
    for words in (("show", home, "--step", 30), ("convert", home, home / "model.pt", "--to", "torch", "--step", 30)):
        refused = typed(*words)
        assert (refused.exit_code, "does not say how its state is nested" in refused.output) == (1, True), refused.output


def test_names_in_a_manifest_do_not_move_the_terminal(home: Path) -> None:
    rewritten(home / "step-000000000030.json", lambda plain: plain.update(layout={"dp\x1b[2J": 2}))
    shown = typed("show", home)
    assert (shown.exit_code, "\x1b" in shown.output, "dp" in shown.output) == (0, False, True)
    rewritten(home / "step-000000000030.json", lambda plain: plain["shards"][0].update(file="step-\x1b]0;x\x07.safetensors"))  # type: ignore[index]
    refused = typed("show", home, "--step", 30)
    assert (refused.exit_code, "\x1b" in refused.output, "is no name of a .safetensors file" in refused.output) == (1, False, True)


def resealed(home: Path, step: int, header: Callable[[dict[str, Any]], object] | None = None, plain: Callable[[dict[str, Any]], object] | None = None) -> None:
    """As somebody would leave it who writes other shards, with sums that are right."""
    [entry] = [each for each in checkpoint.entries(home) if each.step == step]
    path, words = entry.shards[0], json.loads(Path(entry.path).read_text())
    del words["manifest_crc32"]
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    described = json.loads(data[8 : 8 + length])
    if header is not None:
        header(described)
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 8)
    content = len(text).to_bytes(8, "little") + text + data[8 + length :]
    path.write_bytes(content)
    words["shards"][0] |= {"bytes": len(content), "digest": f"crc32:{zlib.crc32(content):08x}"}
    if plain is not None:
        plain(words)
    sealed = json.dumps(words)
    Path(entry.path).write_text(f'{sealed[:-1]}, "manifest_crc32": {zlib.crc32(sealed.encode())}}}')


@pytest.mark.parametrize(
    ("header", "plain"),
    [
        (lambda described: described["state.w"].update(dtype="I32"), None),
        (lambda described: described["state.w"].update(shape=[2]), None),
        (lambda described: described["state.w"].update(shape=[2, 2]), None),
        (lambda described: described.update({"state.v": described.pop("state.w")}), None),
        (lambda described: described.update(x="abc"), None),
        (lambda described: described["state.w"].update(dtype="F6"), None),
        (lambda described: described["state.w"].update(data_offsets=[-8, 8]), None),
        (None, lambda words: words["tensors"]["state.w"].update(shape=[0], pieces=[])),
        (None, lambda words: words["tensors"]["state.w"].update(shape=[2, 2], pieces=[[0, [0, 0], [2, 2]]])),
    ],
)
def test_what_load_refuses_is_not_whole_and_the_last_that_it_takes_is_not_deleted(home: Path, tmp_path: Path, header: Any, plain: Any) -> None:
    (checkpoint.entries(home)[2].path).unlink()
    resealed(home, 20)
    assert (typed("verify", home).exit_code, checkpoint.load(home)[1]) == (0, 20), "twin"  # type: ignore[index]
    resealed(home, 20, header, plain)
    assert checkpoint.load(home)[1] == 10  # type: ignore[index]
    verified = typed("verify", home)
    assert (verified.exit_code, len(re.findall(r"1 +whole\s*\n", verified.output))) == (1, 1), verified.output
    assert typed("copy", home, tmp_path / "archive", "--step", 20).exit_code == 1
    assert not list((tmp_path / "archive").iterdir())
    typed("prune", home, "--keep", 1)
    assert 10 in steps(home)


def test_of_version_1_as_well(home: Path) -> None:
    [_, entry, last] = checkpoint.entries(home)
    Path(last.path).unlink()
    [shard] = entry.manifest.shards
    plain = {"version": 1, "step": 20, "epoch": 0, "finite": True, "data": shard.name, "bytes": shard.bytes, "crc32": shard.crc32, "rest": {"w": {"$tensor": "state.w"}}}
    Path(entry.path).write_text(json.dumps(plain))
    assert typed("verify", home, "--step", 20).exit_code == 0, "twin"
    for wrong in ({"rest": {"w": {"$tensor": "nope"}}}, {"rest": None}):
        Path(entry.path).write_text(json.dumps(plain | wrong))
        assert typed("verify", home, "--step", 20).exit_code == 1
        refused = typed("convert", home, home.with_name("x.pt"), "--to", "torch", "--step", 20)
        assert (refused.exit_code, "step-000000000020.json" in refused.output.replace("\n", "")) == (1, True), refused.output


def test_a_copy_that_was_killed_goes_on(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "archive"
    target.mkdir()
    first, second = [path for each in checkpoint.entries(home) if each.step == 30 for path in each.shards]
    (target / first.name).write_bytes(first.read_bytes())
    (target / second.name).write_bytes(second.read_bytes()[:-1])
    before = (target / first.name).stat().st_ino, (target / second.name).stat().st_ino
    assert typed("copy", home, target).exit_code == 0
    assert checkpoint.load(target)[1] == 30  # type: ignore[index]
    after = (target / first.name).stat().st_ino, (target / second.name).stat().st_ino
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)


def test_a_copy_onto_a_full_disk_says_where_why_and_how_much_is_free(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("eagle_eye.training.atomic_file.replace", full)
    refused = typed("copy", home, tmp_path / "archive")
    said = " ".join(refused.output.split())
    assert refused.exit_code == 1
    for part in ("archive: No space left on device (ENOSPC); ", " are free, ", " are needed; make room"):
        assert part in said, said
    assert not list((tmp_path / "archive").iterdir())
