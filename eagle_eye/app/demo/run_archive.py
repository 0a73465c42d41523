"""A demo's run, made small: the ledger and the history that it wrote, to be opened later without anything running.

`eagle-eye demo --record DIR` makes one, `eagle-eye dashboard --demo` opens the one that is shipped in dashboard/recorded.
"""

import lzma
import re
import shutil
import socket
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import msgspec

from eagle_eye.config import Config, ServerConfig
from eagle_eye.errors import ConfigError
from eagle_eye.ledger import Ledger

LEDGER = "ledger.sqlite"
COMPRESSED = "ledger.sqlite.xz"
HISTORY = "history"


def mark(state: Path, *, began: float, ended: float, seed: int, command: str) -> None:
    """Mark a state directory as a recorded run: a dashboard over it shows the time at which the run ended."""
    from dashboard.sources import RECORDED, Recorded

    recorded = Recorded(began=began, ended=ended, seed=seed, command=command)
    (state / RECORDED).write_bytes(msgspec.json.format(msgspec.json.encode(recorded), indent=2) + b"\n")


def pack(state: Path, folder: Path) -> int:
    """Put a marked state directory into a folder, as small as it gets; what was there before goes. Returns bytes."""
    from dashboard.sources import RECORDED

    shutil.rmtree(folder / HISTORY, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(state / RECORDED, folder / RECORDED)
    _pack_ledger(state / LEDGER, folder / COMPRESSED, _own_names(state))
    shutil.copytree(state / HISTORY, folder / HISTORY, ignore=shutil.ignore_patterns(".new"))
    _merge(folder / HISTORY)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def unpack(target: Path, folder: Path | None = None) -> Config:
    """Make a state directory of a recorded run, the shipped one by default; returns a configuration that opens it. Raises ConfigError."""
    from dashboard import sources

    folder = folder or Path(sources.__file__).with_name("recorded")
    try:
        (target / LEDGER).write_bytes(lzma.decompress((folder / COMPRESSED).read_bytes()))
        shutil.copyfile(folder / sources.RECORDED, target / sources.RECORDED)
        shutil.copytree(folder / HISTORY, target / HISTORY)
    except (OSError, lzma.LZMAError) as error:
        raise ConfigError(f"{folder} holds no recorded run ({error}): make one with `eagle-eye demo --record {folder}`") from error
    Ledger.open(target / LEDGER).close()  # a run that an older version has recorded is brought up to date
    return Config(state_dir=str(target), server=ServerConfig(http=""))


def _own_names(state: Path) -> dict[str, str]:
    """What only this machine is called → what stands for it: stacks name files, leases name the host."""
    import eagle_eye

    run, checkout = state.absolute().parent.parent, Path(eagle_eye.__file__).parents[1]
    return {str(run): "/tmp/eagle-eye-demo", str(checkout): "/opt/eagle-eye", sys.base_prefix: "/usr", socket.gethostname(): "this-machine"}  # noqa: S108 -- a name


def _pack_ledger(source: Path, target: Path, names: Mapping[str, str]) -> None:
    """What SQLite has in its write-ahead log goes along; free pages and names of this machine do not."""
    whole = target.with_suffix(".whole")
    whole.unlink(missing_ok=True)
    with closing(sqlite3.connect(source)) as connection:
        connection.execute("VACUUM INTO ?", (str(whole),))
    own = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in names))
    with closing(sqlite3.connect(whole)) as connection:
        connection.create_function("plain", 1, lambda text: own.sub(lambda found: names[found[0]], text) if isinstance(text, str) else text)
        for table, column in _words(connection):
            connection.execute(f'UPDATE "{table}" SET "{column}" = plain("{column}")')  # noqa: S608 -- names of tables
        connection.commit()
        connection.execute("VACUUM")
    target.write_bytes(lzma.compress(whole.read_bytes(), preset=9 | lzma.PRESET_EXTREME))
    whole.unlink()


def _words(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """(table, column) of every column of text."""
    return connection.execute(
        "SELECT tables.name, columns.name FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns "
        "WHERE tables.type = 'table' AND (columns.type LIKE '%TEXT%' OR columns.type LIKE '%CHAR%')"
    ).fetchall()


def _merge(place: Path) -> None:
    """One file a table: many small ones are mostly headers."""
    from eagle_eye.history.compaction import merge
    from eagle_eye.history.file_names import HistoryFile, visible
    from eagle_eye.history.object_store import ObjectStore

    opened = ObjectStore.of(place)
    groups: dict[tuple[str, int], list[HistoryFile]] = defaultdict(list)
    files = list(opened.files())
    for file in visible(files):
        groups[file.table, file.partition].append(file)
    kept = {merge(opened, group).path if len(group) > 1 else group[0].path for group in groups.values()}
    for file in files:
        if file.path not in kept:
            opened.remove(file)
    for folder in sorted(place.rglob("*"), reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
