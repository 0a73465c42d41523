"""Pages of the dashboard: one file, one page. Each defines `PAGE` (title, order) and `show()`, which draws it."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PageInfo:
    """One page, as its constant `PAGE` describes it."""

    name: str
    """Name of the file, and address of the page."""
    title: str
    order: int
    """In the menu; the lowest is the first page."""
    menu: bool = True
    """Whether the menu shows it."""
    figures_first: bool = False
    """Whether readers come for a figure: the browser then loads what draws figures at once."""


@cache
def available() -> tuple[PageInfo, ...]:
    """Every page of this folder in its order. Reads `PAGE` without importing the module, which is imported when the page is first shown.

    Raises ValueError for a file without such a constant.
    """
    files = (path for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
    return tuple(sorted((_info(path) for path in files), key=lambda page: page.order))


def _info(path: Path) -> PageInfo:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [target.id for target in node.targets if isinstance(target, ast.Name)] == ["PAGE"]:
            return PageInfo(name=path.stem, **ast.literal_eval(node.value))
    raise ValueError(f'{path} is in the folder of pages but defines no page: add PAGE = {{"title": ..., "order": ...}}')
