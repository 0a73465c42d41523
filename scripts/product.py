"""What the scripts beside this file know about the product's source: its modules, who imports whom, and who names what."""

import ast
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("eagle_eye", "collectors", "detectors", "remediation", "dashboard")
PLUGINS = (
    "collectors", "detectors", "remediation.actions", "remediation.guards", "remediation.frameworks", "remediation.alerts.templates",
    "eagle_eye.app.commands", "eagle_eye.app.evaluation.data_sets", "eagle_eye.training.integrations", "dashboard.pages",
)  # fmt: skip
"""Packages in which one file is one plugin, found by its name."""


def files() -> Iterator[Path]:
    """Python files of the product, without generated ones; folders that begin with a dot are not looked through."""
    for room in ROOMS:
        for folder, below, names in os.walk(ROOT / room):
            below[:] = sorted(name for name in below if not name.startswith((".", "__")))
            yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py") and "_pb2" not in name)


def module_name(path: Path) -> str:
    """`eagle_eye/rpc/__init__.py` → `eagle_eye.rpc`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> Mapping[str, Path]:
    """Name of each module and package → its file."""
    return {module_name(path): path for path in files()}


@cache
def tree(module: str) -> ast.Module:
    """Its syntax tree."""
    return ast.parse(modules()[module].read_text())


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    """Every node of its syntax tree."""
    return tuple(ast.walk(tree(module)))


@cache
def imported(module: str) -> tuple[tuple[str, str], ...]:
    """(module, name in it) for each import anywhere in a module, also within functions; the name is empty where the whole module is imported."""
    return tuple(_imported(module))


def _imported(module: str) -> Iterator[tuple[str, str]]:
    package = module if modules()[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in nodes(module):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                parts = package.split(".")
                source = ".".join([*parts[: len(parts) - node.level + 1], *([source] if source else [])])
            yield from ((source, alias.name) for alias in node.names)


def is_plugin(module: str) -> bool:
    """True for a file at the top of a plugin package."""
    path = modules()[module]
    return path.name != "__init__.py" and module.rpartition(".")[0] in PLUGINS
