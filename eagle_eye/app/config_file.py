"""Writes the commented configuration file: every field with its type's default and what it means."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec

from .. import plugins
from ..config import Config, Section

ROOMS = {"collectors": "collectors", "detectors": "detectors", "guards": "remediation.guards", "actions": "remediation.actions"}


def generate(config: Config = Config()) -> str:  # noqa: B008 -- frozen
    """The whole file as text; it parses back to `config`."""
    lines = ["# Eagle Eye: one file, one deployment. Every key with its default; delete what you do not change."]
    sections: list[tuple[str, Section]] = []
    for field, text in field_texts(Config).items():
        value = getattr(config, field)
        if isinstance(value, Section):
            sections.append((field, value))
        elif field not in ROOMS:
            lines += ["", *_comment(text), f"{field} = {_toml(value)}"]
    for name, section in sections:
        lines += ["", "", *_comment(inspect.getdoc(type(section)) or ""), f"[{name}]"]
        for field, text in field_texts(type(section)).items():
            lines += [*_comment(text), f"{field} = {_toml(getattr(section, field))}"]
    for table, room in ROOMS.items():
        for name in plugins.available(room):
            lines += _plugin(table, name, plugins.load(room, name), getattr(config, table).get(name, {}))
    return "\n".join(lines) + "\n"


def field_texts(cls: type) -> dict[str, str]:
    """Field → the text written below it in the class, in order."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    texts: dict[str, str] = {}
    for statement, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            follows = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            texts[statement.target.id] = inspect.cleandoc(str(after.value.value)) if follows else ""  # type: ignore[union-attr]
    return texts


def _plugin(table: str, name: str, cls: type, chosen: dict[str, Any]) -> Iterator[str]:
    yield from ("", "", *_comment((inspect.getdoc(cls) or "").split("\n\n")[0]), f"[{table}.{name}]")
    yield f"enabled = {_toml(chosen.get('enabled', True))}"
    for option in plugins.describe(cls):
        yield from _comment(option.text)
        value = chosen.get(option.name, option.default)
        yield f"{option.name} = {_toml(value)}" if value is not None else f"# {option.name} = ({option.type})"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), 116)]


def _toml(value: Any) -> str:
    encoded: str = msgspec.toml.encode({"x": msgspec.to_builtins(value)}).decode()
    return encoded.split("=", 1)[1].strip()
