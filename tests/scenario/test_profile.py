"""`eagle-eye profile` on the example: real layers and a real group of two processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def profile(state: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "eagle_eye.app.cli", "profile", "--state-dir", str(state), "--warm-up", "0", "--repeats", "2", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)


@pytest.mark.timeout(300)
def test_the_example_is_profiled_and_all_reduce_takes_time_with_two_processes(tmp_path):
    first = profile(tmp_path, "examples/profile_gpt.py", "--json")
    assert first.returncode == 0, first.stderr
    record = json.loads(first.stdout)
    assert [layer["name"] for layer in record["layers"]] == ["embedding", *(f"block {n}" for n in range(1, 7)), "head"]
    assert all(layer["forward"] > 0 and layer["backward"] > 0 and min(layer["mem_required"]) > 0 for layer in record["layers"])
    assert all(times["1"] == 0 < times["2"] for times in record["allreduce_in_node"])
    assert not record["cached"]


def test_a_model_without_layers_is_told_so(tmp_path):
    (tmp_path / "model.py").write_text("")
    done = profile(tmp_path, str(tmp_path / "model.py"))
    assert done.returncode == 1
    assert "has no function layers()" in done.stderr
    assert "Traceback" not in done.stderr
