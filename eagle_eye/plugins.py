"""Finds, configures and builds plugins: one module of a room = one plugin = one public dataclass with the room's verb.

    cls = load("detectors", "liveness")            # or out-of-tree: "pkg.mod:Name"
    detector = build(cls, {"lease_s": 2.0}, {})    # its fields are its configuration

Fields of plain data come from the options; any other field is a service and comes from the caller that builds the plugin.
"""

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import pkgutil
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from . import __version__
from .config import Section
from .errors import PluginError
from .writable_text import words_of

VERBS = {
    "detectors": "update",
    "collectors": "collect",
    "remediation.guards": "__call__",
    "remediation.actions": "run",
}
"""Room → the method that makes a dataclass a plugin of it."""

_PLAIN = (bool, int, float, str, bytes, type(None), Path)
_CONTAINERS = (list, tuple, dict, set, frozenset, typing.Union, types.UnionType)


class Option(NamedTuple):
    """One field of a plugin's configuration."""

    name: str
    type: str
    default: Any
    """None if there is none."""
    text: str
    """The docstring below the field in the class."""


def available(room: str) -> tuple[str, ...]:
    """Names of the plugins in a room, sorted. Raises PluginError if the room's package is not ours."""
    return tuple(name for name in _modules(room) if list(_candidates(_module(f"{room}.{name}"), VERBS[room])))


def load(room: str, name: str) -> type:
    """The class of a plugin: `name` is a module of the room, or "pkg.mod:Name" for one from elsewhere.

    Raises PluginError.
    """
    verb = VERBS.get(room, "")
    if ":" in name:
        return _from_elsewhere(name, verb)
    if name not in _modules(room):
        known = ", ".join(available(room)) or "none"
        raise PluginError(f'no plugin {name!r} in {room}; there are: {known}; your own is named "pkg.mod:Name"')
    found = list(_candidates(_module(f"{room}.{name}"), verb))
    if len(found) != 1:
        names = ", ".join(cls.__name__ for cls in found) or "none"
        raise PluginError(f"{room}.{name} must hold one public dataclass with {verb}(), it holds: {names}")
    return found[0]


def chosen(room: str, tables: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, type, dict[str, Any]]]:
    """(name, class, options) of each plugin of a room, then those that only the configuration knows.

    tables: name → options; `enabled = false` leaves a plugin out, `use` names another class. Raises PluginError.
    """
    for name in dict.fromkeys((*available(room), *tables)):
        options = dict(tables.get(name, {}))
        enabled, use = options.pop("enabled", True), options.pop("use", name)
        if not isinstance(enabled, bool) or not isinstance(use, str):
            raise PluginError(f'{name}: write enabled = true or false, and use = "pkg.mod:Name"; they are {_shown(enabled)} and {_shown(use)}')
        if enabled:
            yield name, load(room, use), options


def beside(plugin: type, verb: str) -> type | None:
    """The public dataclass with another verb in the module of a plugin (the learner of a detector), None without."""
    module = sys.modules[plugin.__module__]
    return next(_candidates(module, verb), None)


def build(cls: type, options: Mapping[str, Any], services: Mapping[str, Any]) -> Any:
    """An instance of a plugin; services are handed in by the name of the field.

    Raises PluginError for an unknown option, a wrong type, a refused value or a missing service.
    """
    arguments = configure(cls, options)
    for field in _init_fields(cls):
        if field.name in arguments:
            continue
        if field.name in services:
            arguments[field.name] = services[field.name]
        elif _required(field):
            raise PluginError(f"{_name(cls)} needs {field.name!r}: set it as an option, or use it where one is at hand")
    try:
        return cls(**arguments)
    except (ValueError, TypeError) as error:
        shown = ", ".join(f"{name} = {_shown(value)}" for name, value in options.items())
        raise PluginError(f"{_name(cls)} refuses its options ({shown}): {error}") from error
    except (Exception, SystemExit) as error:  # boundary: a stranger's class
        raise PluginError(f"{_name(cls)} cannot be built: {words_of(error)}; mend it, or set enabled = false") from error


def configure(cls: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a plugin, checked and converted; builds nothing. Raises PluginError, as `build` does."""
    accepted = {option.name: option for option in describe(cls)}
    hints = typing.get_type_hints(cls, include_extras=True) if options else {}
    converted = {}
    for name, value in options.items():
        if name not in accepted:
            raise PluginError(f"{_name(cls)} has no option {name!r}; it accepts: {', '.join(accepted) or 'none'}")
        try:
            converted[name] = msgspec.convert(value, hints[name], dec_hook=_path)
        except (msgspec.ValidationError, TypeError) as error:
            option = accepted[name]
            text, _, inside = str(error).rstrip("`").partition(" - at `$")
            if inside:  # the one element that is wrong, and not the whole list or table
                raise PluginError(f"option '{name}{inside}' of {_name(cls)}: {text}") from error
            raise PluginError(
                f"option {name!r} of {_name(cls)} is {_shown(value)}: {error}; it accepts {option.type}, e.g. {_plain(option.default)!r}"
            ) from error
    return converted


@functools.cache
def describe(cls: type) -> tuple[Option, ...]:
    """The configuration of a plugin, in the order of its fields; services are left out."""
    hints = typing.get_type_hints(cls)
    texts = {name: text for parent in reversed(cls.__mro__) for name, text in field_texts(parent).items()}
    return tuple(
        Option(field.name, _type_name(hints[field.name]), _default(field), texts.get(field.name, ""))
        for field in _init_fields(cls)
        if _is_plain(hints[field.name])
    )


# --- finding -----------------------------------------------------------------------------------------------------


def _ours(room: str) -> types.ModuleType:
    """The room's package. A stranger's package of the same name is refused: it would run as ours."""
    if room not in VERBS:
        raise PluginError(f"there is no room {room!r} for plugins; there are: {', '.join(VERBS)}")
    root = _module(room.partition(".")[0])
    if getattr(root, "__version__", None) is not __version__:
        path = root.__file__ or ", ".join(root.__path__)
        raise PluginError(
            f"the package {root.__name__!r} at {path} is not Eagle Eye's: run the services in an environment of their own,"
            " and not from a folder that has one of that name"
        )
    return _module(room)


def _modules(room: str) -> tuple[str, ...]:
    """Sorted; those in a folder that was listed are known for as long as the process runs."""
    return _listed(tuple(_ours(room).__path__))


@functools.cache
def _listed(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(path) if not module.ispkg))


def _module(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # boundary: the module may be a stranger's, and its name anything
        why = str(error) if isinstance(error, ImportError) else words_of(error)
        raise PluginError(f"cannot import {name}: {why}; install what it needs, or correct the name") from error


def _candidates(module: types.ModuleType, verb: str) -> Iterator[type]:
    for name, value in vars(module).items():
        if not inspect.isclass(value) or value.__module__ != module.__name__ or name.startswith("_"):
            continue
        if dataclasses.is_dataclass(value) and verb in dir(value):
            yield typing.cast(type, value)


def _from_elsewhere(name: str, verb: str) -> type:
    path, _, attribute = name.partition(":")
    cls = getattr(_module(path), attribute, None)
    if not inspect.isclass(cls) or not dataclasses.is_dataclass(cls) or verb not in dir(cls):
        raise PluginError(f"{name} is no dataclass with {verb}()")
    return cls


# --- fields ------------------------------------------------------------------------------------------------------


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _init_fields(cls: type) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(cls) if field.init and not field.name.startswith("_")]


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _is_plain(hint: Any) -> bool:
    """True for what a plugin's own table can hold; a section of the deployment's file comes from whoever builds it."""
    if inspect.isclass(hint) and issubclass(hint, Section):
        return False
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return True
    if origin is typing.Annotated:
        return _is_plain(typing.get_args(hint)[0])
    if origin in _CONTAINERS:
        return all(argument is Ellipsis or _is_plain(argument) for argument in typing.get_args(hint))
    return hint in _PLAIN or (inspect.isclass(hint) and issubclass(hint, (enum.Enum, msgspec.Struct)))


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Annotated:
        return _type_name(typing.get_args(hint)[0])
    if inspect.isclass(hint) and issubclass(hint, enum.Enum):
        return " or ".join(repr(_plain(member)) for member in hint)
    return hint.__name__ if inspect.isclass(hint) and typing.get_origin(hint) is None else str(hint)


def _plain(value: Any) -> Any:
    """As a configuration file holds it."""
    return value.value if isinstance(value, enum.Enum) else value


def _shown(value: Any) -> str:
    """As an error shows it: what is inside tables may be a secret."""
    return f"a {type(value).__name__}" if isinstance(value, list | tuple | dict) else repr(value)


def _path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")


def field_texts(cls: type) -> Mapping[str, str]:
    """Field → the docstring below it in the source of the class."""
    module = sys.modules.get(cls.__module__)
    return _texts(module).get(cls.__qualname__, {}) if module and "__annotations__" in vars(cls) else {}


@functools.cache
def _texts(module: types.ModuleType) -> Mapping[str, Mapping[str, str]]:
    """The same of every class. The source is read as a whole and once: `inspect` reads the whole of it for each class."""
    try:
        return {name: _texts_within(definition) for name, definition in _classes(ast.parse(inspect.getsource(module)))}
    except (OSError, TypeError, SyntaxError):
        return {}  # made at run time: there is no source to read


def _classes(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.ClassDef]]:
    """(qualified name, definition), those in others too."""
    for statement in ast.iter_child_nodes(node):
        if isinstance(statement, ast.ClassDef):
            yield prefix + statement.name, statement
            yield from _classes(statement, f"{prefix}{statement.name}.")
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _classes(statement, f"{prefix}{statement.name}.<locals>.")
        elif isinstance(statement, ast.stmt):
            yield from _classes(statement, prefix)


def _texts_within(definition: ast.ClassDef) -> Mapping[str, str]:
    texts = {}
    for statement, below in zip(definition.body, definition.body[1:], strict=False):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            texts[statement.target.id] = inspect.cleandoc(below.value.value)
    return texts
