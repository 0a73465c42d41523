"""What CONTRIBUTING shows can be pasted: each example is found by its name, and its fields are its configuration."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eagle_eye import plugins

TEXT = (Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text()
EXAMPLES = {
    found["path"]: found["code"]
    for found in re.finditer(r"Create `(?P<path>[\w/]+\.py)`.*?```python\n(?P<code>.*?)```", TEXT, re.DOTALL)
}
PLUGINS = [path for path in EXAMPLES if path.rpartition("/")[0].replace("/", ".") in plugins.VERBS]


def test_there_is_one_for_each_kind_of_plugin():
    rooms = {path.rpartition("/")[0] for path in EXAMPLES}
    assert rooms == {
        "collectors", "detectors", "remediation/guards", "remediation/actions", "remediation/alerts/templates", "dashboard/pages",
    }  # fmt: skip


@pytest.mark.parametrize("path", EXAMPLES)
def test_an_example_stands_on_names_that_are_there(path, tmp_path, monkeypatch):
    name = Path(path).stem
    (tmp_path / f"{name}.py").write_text(EXAMPLES[path])
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert importlib.import_module(name).__doc__
    finally:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("path", PLUGINS)
def test_an_example_is_a_plugin_whose_fields_are_its_configuration(path, tmp_path, monkeypatch):
    room, name = path.rpartition("/")[0].replace("/", "."), Path(path).stem
    (tmp_path / f"{name}.py").write_text(EXAMPLES[path])
    monkeypatch.syspath_prepend(tmp_path)
    class_name = re.search(r"^class (\w+)", EXAMPLES[path], re.MULTILINE)[1]
    try:
        options = list(plugins.describe(plugins.load(room, f"{name}:{class_name}")))
        assert options
        assert all(option.text for option in options)
    finally:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("path", EXAMPLES)
def test_an_example_has_a_name_of_its_own_and_passes_the_linter(path):
    root = Path(__file__).resolve().parents[2]
    others = {each.stem for room in ("eagle_eye", "collectors", "detectors", "remediation", "dashboard") for each in (root / room).rglob("*.py")}
    assert Path(path).stem not in others
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--stdin-filename", path, "-"]
    said = subprocess.run(command, cwd=root, input=EXAMPLES[path], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
