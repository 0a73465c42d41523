"""Stacks that were collected from other nodes: files of `py-spy dump --json`, whose names tell the ranks."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from eagle_eye.activity.python_stacks import parse
from eagle_eye.activity.stack_groups import SampledProcess
from eagle_eye.regular_file import read_owned

LARGEST = 16 << 20
"""Bytes of a file; one of a rank with 200 threads has 2 MB."""
MOST = 200_000
"""Files of a folder that are read."""
RANK = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)
NUMBER = re.compile(r"\d+")
Told = Callable[[str], None]


def files_in(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Files, and those of folders, without what begins with a dot. Raises OSError."""
    return tuple(file for path in paths for file in (_in_folder(path) if path.is_dir() else (path,)))


def _in_folder(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if not file.name.startswith(".") and not file.is_dir())[:MOST]


def read_files(files: Iterable[Path], left_out: Told) -> Iterator[tuple[Path, SampledProcess | None]]:
    """Each file with its stacks; None for one that holds none, which `left_out` is told with the reason."""
    for file in files:
        try:
            content, _ = read_owned(file, LARGEST)
        except OSError as error:
            left_out(f"{file}: {error.strerror}")
            yield file, None
            continue
        threads = parse(content)
        if not threads:
            left_out(f"{file}: it is no output of py-spy dump --json")
        yield file, SampledProcess(samples=(threads,)) if threads else None


def by_rank(found: Iterable[tuple[Path, SampledProcess]]) -> tuple[str, dict[str, SampledProcess]]:
    """(what a member is called, name → stacks, in the order of the ranks). Files that would be one rank are named by their paths, as all are when one name holds no number."""
    known = list(found)
    ranks = [_rank(file) for file, _ in known]
    often = Counter(ranks)
    if any(rank is None or often[rank] > 1 for rank in ranks):
        return "process", {str(file.with_suffix("")): process for file, process in known}
    numbered = {str(rank): process for (_, process), rank in zip(known, ranks, strict=True)}
    return "rank", dict(sorted(numbered.items(), key=lambda item: int(item[0])))


def _rank(file: Path) -> int | None:
    """The number after `rank`, else the last one in the name without what follows its dot; None if there is none."""
    found = RANK.findall(file.stem) or NUMBER.findall(file.stem)
    return int(found[-1]) if found and len(found[-1]) < 10 else None
