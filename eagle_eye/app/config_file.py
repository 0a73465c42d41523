"""Writes the commented configuration file: every field with its type's default and what it means."""

import inspect
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from eagle_eye import plugins
from eagle_eye.config import Config, Section
from remediation.policy.engine_settings import EngineSettings

from .plugin_wiring import TABLES

HANDED_IN = {"node", "run_dir", "state_dir", "reading_s"}
"""Fields of collectors that the agent fills in: nobody needs to configure them."""


def generate(config: Config = Config()) -> str:  # noqa: B008 -- frozen
    """The whole file as text; it parses back to `config`."""
    lines = ["# Eagle Eye: one file, one deployment. Every key with its default; delete what you do not change."]
    sections: list[tuple[str, Section]] = []
    texts = plugins.field_texts(Config)
    for field in Config.__struct_fields__:
        value = getattr(config, field)
        if isinstance(value, Section):
            sections += _sections(field, value)
        elif field not in TABLES and field != "engine":
            lines += ["", *_comment(texts.get(field, "")), f"{field} = {_toml(value)}"]
    for name, section in sections:
        lines += ["", "", *_comment(inspect.getdoc(type(section)) or ""), f"[{name}]"]
        for field, text in plugins.field_texts(type(section)).items():
            lines += _comment(text)
            element = _element(type(section), field)
            if element is None or getattr(section, field):
                lines.append(f"{field} = {_toml(getattr(section, field))}")
            else:  # no key may be in the way of the user's tables
                lines += _commented_table(f"{name}.{field}", element)
    lines += _plugin("engine", EngineSettings, config.engine)
    for table, room in TABLES.items():
        for name in plugins.available(room):
            chosen = {"enabled": True, **getattr(config, table).get(name, {})}
            lines += _plugin(f"{table}.{name}", plugins.load(room, name), chosen)
    return "\n".join(lines) + "\n"


def _sections(name: str, section: Section) -> Iterator[tuple[str, Section]]:
    """A section, then those within it."""
    yield name, section
    for field in section.__struct_fields__:
        if isinstance(value := getattr(section, field), Section):
            yield from _sections(f"{name}.{field}", value)


def _element(section: type[Section], field: str) -> type[Section] | None:
    """What an array of tables holds; None for a field that is none."""
    [element, *_] = (*typing.get_args(typing.get_type_hints(section)[field]), None)
    return element if inspect.isclass(element) and issubclass(element, Section) else None


def _commented_table(name: str, element: type[Section]) -> Iterator[str]:
    yield f"# [[{name}]]"
    defaults = {field.name: "" if field.default is msgspec.NODEFAULT else field.default for field in msgspec.structs.fields(element)}
    for field, text in plugins.field_texts(element).items():
        yield from _comment(text)
        yield f"# {field} = {_toml(defaults[field])}"


def _plugin(table: str, cls: type, chosen: dict[str, Any]) -> Iterator[str]:
    yield from ("", "", *_comment((inspect.getdoc(cls) or "").split("\n\n")[0]), f"[{table}]")
    if "enabled" in chosen:
        yield f"enabled = {_toml(chosen['enabled'])}"
    for option in plugins.describe(cls):
        if option.name in HANDED_IN:
            continue
        yield from _comment(option.text)
        value = chosen.get(option.name, option.default)
        if value is None:
            yield f"# {option.name} = ({option.type})"
        else:
            tables = value == {} or (value == () and "." in option.type)  # a user names them as [table.option] or [[table.option]]: no key may be in the way
            yield f"{'# ' if tables else ''}{option.name} = {_toml(value)}"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), 116, break_on_hyphens=False)]


def _toml(value: Any) -> str:
    """A value as it stands behind `key =`; a dict becomes an inline table."""
    plain = msgspec.to_builtins(value, enc_hook=str)
    if isinstance(plain, dict):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in plain.items()) + " }" if plain else "{}"
    if isinstance(plain, list | tuple):
        return f"[{', '.join(_toml(each) for each in plain)}]"
    encoded: str = msgspec.toml.encode({"x": plain}).decode()
    return encoded.split("=", 1)[1].strip()
