"""The glossary and the code agree: what it names is there, and no term stands in it twice."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (?P<term>[^|]+) \| (?P<meaning>[^|]+) \| (?P<origin>[^|]+) \| `(?P<code>[\w.]+)` \|$", re.MULTILINE)
ROWS = [found.groupdict() for found in ROW.finditer((ROOT / "docs" / "glossary.md").read_text())]


def names_in(path: Path) -> set[str]:
    """What a module defines or, as the face of a package, hands on."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def is_there(name: str) -> bool:
    """A module, a package, or a name in one."""
    path = ROOT.joinpath(*name.split("."))
    if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file():
        return True
    home = path.parent
    module = home.with_suffix(".py") if home.with_suffix(".py").is_file() else home / "__init__.py"
    return module.is_file() and path.name in names_in(module)


def test_what_the_glossary_names_is_in_the_code():
    assert len(ROWS) > 80
    assert [row["code"] for row in ROWS if not is_there(row["code"])] == []


def test_no_term_stands_in_it_twice():
    terms = [term.partition("(")[0].strip() for row in ROWS for term in row["term"].split(",")]
    assert sorted({term for term in terms if terms.count(term) > 1}) == []


def test_every_row_of_its_tables_was_read():
    text = (ROOT / "docs" / "glossary.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| term")]
    assert len(rows) == len(ROWS)


NAMED = re.compile(r"`((?:eagle_eye|collectors|detectors|remediation|dashboard|benchmarks|tests|examples|deploy)/[\w./-]+\.\w+)`")


def test_files_that_documents_name_are_there():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert [(page.name, name) for page in pages for name in NAMED.findall(page.read_text()) if not (ROOT / name).exists()] == []


SENDERS = re.compile(r"""(?:_notify|_tell|_notice|Notice|tell_refused)\((?:[\w.]+, )*(?:name=)?"([a-z]+\.[a-z_]+)\"""")
EVENTS = ("session.opened", "session.lost")
"""The leader's `_tell` writes an event of these."""


def test_every_notice_is_explained():
    sources = [path.read_text() for room in ("eagle_eye", "collectors", "detectors", "remediation") for path in (ROOT / room).rglob("*.py")]
    sent = {name for text in sources for name in SENDERS.findall(text.replace("(\n", "(").replace("  ", ""))} - set(EVENTS)
    table = (ROOT / "docs" / "findings.md").read_text().partition("\n## Notices\n")[2].partition("\n## ")[0]
    explained = {name for row in table.splitlines() if row.startswith("| `") for name in re.findall(r"`([a-z]+\.[a-z_]+)`", row.split("|")[1])}
    assert len(sent) > 20, "they were found"
    assert sorted(sent - explained) == []
