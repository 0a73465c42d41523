"""`eagle-eye stacks`: where the processes of a job are, in groups of equal stacks."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import click
from rich.console import Console

from eagle_eye.activity.motion import ENDED
from eagle_eye.activity.open_files import open_files
from eagle_eye.activity.python_stacks import NoStacks, parse
from eagle_eye.activity.stack_groups import SampledProcess, group_stacks
from eagle_eye.activity.stack_sampler import LOOK_LIMIT_S
from eagle_eye.activity.stack_text import PLURALS, members_text
from eagle_eye.app import options
from eagle_eye.app.launcher_registry import run_dirs
from eagle_eye.app.printing import print_json, print_text
from eagle_eye.app.stack_printing import groups_json, print_groups, print_open_files, process_json
from eagle_eye.app.stack_reports import Taken, bar, reports_of, sample_processes
from eagle_eye.app.stack_targets import StackTargets, job_is_registered, of_job, of_pids
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.regular_file import read_owned

REMEDIES = {
    NoStacks.NOT_INSTALLED: "install it: pip install 'eagle-eye[node]'",
    NoStacks.NOT_ALLOWED: "run it as the user of the job, or as root: sudo $(which eagle-eye) stacks; in a container allow SYS_PTRACE "
    "(docker run --cap-add SYS_PTRACE; Kubernetes: securityContext.capabilities.add)",
    NoStacks.LATE: "the machine is very busy, or the kernel holds the process: see its state",
}
NAMED = 5
"""Files that are left out, told one by one."""
FILE_LARGEST = 16 << 20
"""Bytes of a file of py-spy; one of a rank with 200 threads has 2 MB."""
FILES_MOST = 200_000
"""Files of a folder that are read."""
RANK = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)
NUMBER = re.compile(r"\d+")
Told = Callable[[str], None]


@click.command(short_help="show where the workers of a job are: groups of equal stacks, and what each waits for")
@click.argument("job_or_files", nargs=-1, metavar="[JOB | DIR...]")
@click.option("--pid", "pids", multiple=True, type=click.IntRange(1, 1 << 22), help="Look at this process instead; may be given several times.")
@click.option("--samples", default=3, show_default=True, type=click.IntRange(1, 100), help="Looks at each process: several of them show which threads move and which stand.")
@click.option("--every", "every_s", default=0.2, show_default=True, type=click.FloatRange(0.0, 60.0), help="Seconds between two looks at a process.")
@click.option("--open-files", "with_files", is_flag=True, help="List the open files of each process too, sockets with their other end.")
@options.as_json
@options.wide
@options.deployment
def command(
    config: Config, job_or_files: tuple[str, ...], pids: tuple[int, ...], samples: int, every_s: float, with_files: bool, json_lines: bool, wide: bool
) -> None:
    """Show the Python stacks of a job's workers on this node, those with equal stacks as one group, the largest group first.

    JOB is tenant/name/run, or a part of it that is unambiguous; it can be left out where one job runs. For a job on several nodes run
    py-spy dump --json on each of them, collect the files in a folder, and name that: the file's name tells the rank (rank-17.json).
    No process is stopped or slowed for it. --wide prints whole paths, and every frame of libraries. Exits with 1 where no stack could be read.

    \b
    Examples:
      eagle-eye stacks                              # the only job on this node
      eagle-eye stacks team/gpt --open-files
      eagle-eye stacks --pid 4711 --pid 4712 --samples 10 --every 1
      eagle-eye stacks collected/ --json            # files of py-spy dump --json, one a rank
    """
    folders = list(dict.fromkeys([config.run, *run_dirs(config.state)]))
    if pids and job_or_files:
        raise click.UsageError("name either processes with --pid, or a job, or files")
    if job_or_files and not (len(job_or_files) == 1 and job_is_registered(folders, job_or_files[0])) and all(Path(name).exists() for name in job_or_files):
        _from_files([Path(name) for name in job_or_files], json_lines=json_lines, wide=wide)
        return
    if len(job_or_files) > 1:
        raise click.UsageError("name one job, or files that are there")
    targets = of_pids(pids) if pids else of_job(folders, job_or_files[0] if job_or_files else "")
    _from_processes(targets, samples, every_s, config.stall.patience_s, with_files=with_files, json_lines=json_lines, wide=wide)


# --- processes ----------------------------------------------------------------------------------------------------------


def _from_processes(targets: StackTargets, samples: int, every_s: float, patience_s: float, *, with_files: bool, json_lines: bool, wide: bool) -> None:
    taken, late = sample_processes(targets, samples, every_s, SystemClock())
    reports = reports_of(taken, targets, patience_s)
    groups = group_stacks({name: found.process for name, found in reports.items()})
    files = {name: open_files(targets.pids[name]) for name in reports} if with_files else None
    if json_lines:
        each = [process_json(name, targets.pids[name], found, None if files is None else files[name]) for name, found in reports.items()]
        print_json({"job": targets.title, "groups": groups_json(groups), "processes": each, "gone": targets.gone, "late": late})
    else:
        console = Console()
        every = f", {every_s:g} s apart" if samples > 1 else ""
        print_text(console, f"{f'{targets.title}: ' if targets.title else ''}{_counted(len(reports), targets.word)}, {samples} look{'s' * (samples > 1)}{every}")
        print_groups(console, groups, targets.word, {name: found.facts for name, found in reports.items()}, wide=wide)
        print_open_files(console, files or {}, targets.word, wide=wide)
    _complain(targets, taken, late)


def _complain(targets: StackTargets, taken: Taken, late: Sequence[str]) -> None:
    """On stderr: whom nothing is known of, and how to mend it. Exits with 1 where no stack was read."""
    gone = [*targets.gone, *(name for name in targets.pids if name not in taken and name not in late)]
    if gone:
        click.echo(f"gone: {members_text(gone, targets.word)}", err=True)
    if late:
        click.echo(f"left out, since the kernel did not answer within {LOOK_LIMIT_S:g} s: {members_text(late, targets.word)}", err=True)
    why: dict[NoStacks, list[str]] = {}
    for name, found in taken.items():
        if found[-1].no_stacks is not None and found[-1].look.state not in ENDED:
            why.setdefault(found[-1].no_stacks, []).append(name)
    for reason, names in why.items():
        click.echo(f"no stack of {members_text(names, targets.word)}: {reason}{f'; {REMEDIES[reason]}' if reason in REMEDIES else ''}", err=True)
    if not any(sample.look.stacks for found in taken.values() for sample in found):
        raise SystemExit(1)


def _counted(number: int, word: str) -> str:
    return f"{number} {word if number == 1 else PLURALS.get(word, f'{word}s')}"


# --- files of py-spy dump --json, whose names tell the ranks ----------------------------------------------------------------


def _from_files(paths: Sequence[Path], *, json_lines: bool, wide: bool) -> None:
    files, complaints, found = _files_in(paths), list[str](), list[tuple[Path, SampledProcess]]()
    with bar("reading files") as shown:
        task = shown.add_task("", total=len(files))
        for file, process in _read_files(files, complaints.append):
            if process is not None:
                found.append((file, process))
            shown.advance(task)
    for complaint in complaints[:NAMED]:
        click.echo(f"left out: {complaint}", err=True)
    if len(complaints) > NAMED:
        click.echo(f"left out: {len(complaints) - NAMED} files more", err=True)
    if not found:
        raise click.ClickException(f"no file with stacks in {', '.join(map(str, paths))}: write one on each node with py-spy dump --nonblocking --json --pid PID > rank-N.json")
    word, processes = _by_rank(found)
    groups = group_stacks(processes)
    if json_lines:
        print_json({"job": "", "groups": groups_json(groups), "processes": [], "gone": [], "late": []})
        return
    console = Console()
    print_text(console, f"{_counted(len(processes), word)} in {len(files)} file{'s' * (len(files) > 1)}, one look at each")
    print_groups(console, groups, word, wide=wide)


def _files_in(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Files, and those of folders, without what begins with a dot. Raises OSError."""
    return tuple(file for path in paths for file in (_in_folder(path) if path.is_dir() else (path,)))


def _in_folder(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if not file.name.startswith(".") and not file.is_dir())[:FILES_MOST]


def _read_files(files: Iterable[Path], left_out: Told) -> Iterator[tuple[Path, SampledProcess | None]]:
    """Each file with its stacks; None for one that holds none, which `left_out` is told with the reason."""
    for file in files:
        try:
            content, _ = read_owned(file, FILE_LARGEST)
        except OSError as error:
            left_out(f"{file}: {error.strerror}")
            yield file, None
            continue
        threads = parse(content)
        if not threads:
            left_out(f"{file}: it is no output of py-spy dump --json")
        yield file, SampledProcess(samples=(threads,)) if threads else None


def _by_rank(found: Iterable[tuple[Path, SampledProcess]]) -> tuple[str, dict[str, SampledProcess]]:
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
