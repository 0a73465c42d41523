"""Plugins: found by name, configured by their fields, refused when they are not ours."""

import sys
import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import detectors
from eagle_eye import plugins
from eagle_eye.clock import Clock, FakeClock
from eagle_eye.errors import PluginError


@dataclass
class Sample:
    """A plugin for these tests."""

    clock: Clock
    limit: float = 1.5
    """Seconds that are too many."""
    names: tuple[str, ...] = ()
    folder: Path = Path("/var")
    strict: bool = field(default=False)
    """Refuse everything."""

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError("limit must not be negative")

    def update(self, frame: object, /) -> list[object]:
        return []


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> str:
    module = types.ModuleType("strangely_named")
    module.Sample = Sample  # type: ignore[attr-defined]
    module.Unfit = FakeClock  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "strangely_named", module)
    return "strangely_named:Sample"


@pytest.mark.parametrize("room", list(plugins.VERBS))
def test_every_plugin_of_every_room_can_be_loaded_and_described(room: str) -> None:
    for name in plugins.available(room):
        cls = plugins.load(room, name)
        defaults = {option.name: option.default for option in plugins.describe(cls) if option.default is not None}
        assert plugins.configure(cls, defaults) == defaults


def test_modules_without_a_plugin_are_skipped() -> None:
    assert not {"runtime", "features", "diagnosis"} & set(plugins.available("detectors"))
    with pytest.raises(PluginError, match="no plugin 'runtime' in detectors"):
        plugins.load("detectors", "runtime")


def test_an_unknown_name_lists_those_that_there_are() -> None:
    with pytest.raises(PluginError, match=r"no plugin 'nonsense' in remediation.guards; there are: .*approval"):
        plugins.load("remediation.guards", "nonsense")
    with pytest.raises(PluginError, match="no room 'kitchen'"):
        plugins.available("kitchen")


def test_out_of_tree(own: str) -> None:
    assert plugins.load("detectors", own) is Sample
    with pytest.raises(PluginError, match=r"strangely_named:Unfit is no dataclass with update\(\)"):
        plugins.load("detectors", "strangely_named:Unfit")
    with pytest.raises(PluginError, match="cannot import not_there"):
        plugins.load("detectors", "not_there:Sample")


def test_options_are_converted_and_services_handed_in() -> None:
    clock = FakeClock()
    sample = plugins.build(Sample, {"limit": 2, "names": ["a"], "folder": "/tmp"}, {"clock": clock, "unused": 1})
    assert sample == Sample(clock=clock, limit=2.0, names=("a",), folder=Path("/tmp"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": "fast"}, r"option 'limit' of .*Sample is 'fast': Expected `float`.*accepts float, e.g. 1.5"),
        ({"limits": 1.0}, "no option 'limits'; it accepts: limit, names, folder, strict"),
        ({"clock": 1}, "no option 'clock'"),
        ({"limit": -1.0}, "refuses its options .*limit must not be negative"),
        ({"folder": 3}, "option 'folder'"),
    ],
)
def test_wrong_options_name_option_plugin_and_what_is_accepted(options: dict[str, object], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        plugins.build(Sample, options, {"clock": FakeClock()})


def test_a_missing_service_is_named() -> None:
    with pytest.raises(PluginError, match="needs 'clock'"):
        plugins.build(Sample, {}, {})


def test_describe_gives_type_default_and_text() -> None:
    options = {option.name: option for option in plugins.describe(Sample)}
    assert list(options) == ["limit", "names", "folder", "strict"]
    assert options["limit"] == plugins.Option("limit", "float", 1.5, "Seconds that are too many.")
    assert options["names"].text == ""


def test_a_stranger_of_the_same_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detectors, "__version__", "0.1.11")
    with pytest.raises(PluginError, match=r"the package 'detectors' at .*detectors.__init__.py is not Eagle Eye's"):
        plugins.available("detectors")


@pytest.mark.parametrize("text", ["raise SystemExit(0)", "import sys; sys.exit('no licence')", "1 / 0", "def (", "import not_there_either"])
def test_a_module_that_cannot_be_imported_is_named(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sys.exit() of a module ended the server with exit code 0 and no word."""
    (tmp_path / "foreign_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match="cannot import foreign_module"):
        plugins.load("detectors", "foreign_module:Sample")


@pytest.mark.parametrize("error", [RuntimeError("no GPU"), SystemExit(1), OSError("no file")])
def test_a_plugin_that_cannot_be_built_is_named(error: BaseException) -> None:
    @dataclass
    class Unfit(Sample):
        def __post_init__(self) -> None:
            raise error

    with pytest.raises(PluginError, match=r"Unfit cannot be built: .*enabled = false"):
        plugins.build(Unfit, {}, {"clock": FakeClock()})
