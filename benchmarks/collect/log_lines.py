"""Whether lines of real logs are given the right component and code.

    python -m benchmarks.collect.log_lines --data DIR       DIR/gpu_node_logs, DIR/nccl_logs

kernel_lines.jsonl has lines of kernels and monitors with weak labels (which program's test they come from) and the codes of Xids and SXids. Lines that no
kernel prints (names of devices, lists of modules, a monitor's own sentences about them) are counted apart. The whole logs of nodes have one label each. The logs of
jobs are of healthy runs, or ended by the time limit: an error in one of them is a false alarm. Beside it, the same lines are searched for the words `error`,
`fail` and `Xid`, as people do with grep.
"""

import argparse
import gzip
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import Row, report
from collectors.log.job_messages import JobMessage, JobMessages, JobOutput
from collectors.log.kernel_messages import KernelMessage, KernelMessages
from collectors.log.log_prefix import kernel_line

GOAL = 0.98
COMPONENTS = {
    "cpu": ("cpu",), "disk": ("disk", "filesystem"), "memory": ("memory",), "nvidia/infiniband": ("network",), "nvidia/infiniband/store": ("network",),
    "nvidia/nccl": ("process",), "nvidia/nvlink": ("gpu",), "nvidia/peermem": ("gpu",), "nvidia/sxid": ("nvswitch",), "nvidia/xid": ("gpu",),
    "nvidia/hw-slowdown": ("gpu",), "os": ("kernel", "memory"), "pkg/fault-injector": ("gpu",), "pkg/pstore": ("kernel",),
}  # fmt: skip
"""The label of a line → our components."""
NO_LOG = re.compile(r"\A(?:ib_core \d|expected |/dev/mapper|nvme\d\w* should|mlx5_\d+ (?:should|device should)|should have|\+-)")
"""What only the tests of a program say."""
WORDS = re.compile(r"error|fail|xid", re.IGNORECASE)
LOGS = {
    "gpud__kmsg_kmsg.1.log": set(),
    "gpud__nvidia_xid_dmesg-with-xid-119.log": {("gpu", 119)},
    "gpud__components_memory_dmesg.decode.iso.log": {("gpu", 13), ("gpu", 43), ("memory", -1)},
    "gpud__nvidia_nccl_dmesg.decode.iso.log": {("process", -1)},
}  # fmt: skip
"""What the errors of a whole log are, by its label."""


class Line(NamedTuple):
    """One labelled line and what was read in it."""

    label: dict[str, Any]
    message: KernelMessage | None

    @property
    def right(self) -> bool:
        """Component, and code where the label has one."""
        if self.message is None or self.message.component not in COMPONENTS.get(self.label["component"], ()):
            return False
        return not self.label["kind"] or (self.message.code, self.message.number) == (self.label["kind"], self.label["code"])


def labelled(data: Path, table: KernelMessages) -> list[Line]:
    """The lines that a kernel or a monitor prints."""
    rows = [json.loads(line) for line in (data / "gpu_node_logs" / "kernel_lines.jsonl").read_text().splitlines()]
    return [Line(row, table.read(kernel_line(row["line"], 0.0).text)) for row in rows if not NO_LOG.search(row["line"])]


def errors_of(path: Path, table: KernelMessages) -> set[tuple[str, int]]:
    """Component and code of the errors in a whole log."""
    read = (table.read(kernel_line(line, 0.0).text) for line in path.read_text().splitlines())
    return {(message.component, message.number) for message in read if message is not None and message.level == "error"}


def of_jobs(data: Path) -> Iterator[tuple[str, list[JobMessage], int]]:
    """(label, errors, lines with the words that people search for) of each job's log."""
    messages = JobMessages()
    for row in json.loads((data / "nccl_logs" / "labels.json").read_text()):
        content = gzip.decompress((data / "nccl_logs" / row["file"]).read_bytes())
        errors = [message for message in JobOutput(messages).read(content, 0.0) if message.level == "error"]
        yield row["label"], errors, sum(1 for line in content.decode(errors="replace").splitlines() if WORDS.search(line))


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with gpu_node_logs/ and nccl_logs/")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    table = KernelMessages()
    lines = labelled(options.data, table)
    coded = [line for line in lines if line.label["kind"]]
    right, words = sum(line.right for line in lines), sum(bool(WORDS.search(line.label["line"])) for line in lines)
    rows = [
        Row("component and code of kernel lines", f"{right} of {len(lines)}", f"≥ {GOAL:.0%}", right >= GOAL * len(lines), f"grep finds {words} of them", f"{right / words:.1f} times"),
        Row("Xids and SXids", f"{sum(line.right for line in coded)} of {len(coded)}", "all", all(line.right for line in coded)),
    ]
    for name, expected in LOGS.items():
        found = errors_of(options.data / "gpu_node_logs" / "kernel" / name, table)
        rows.append(Row(f"errors in {name}", _words(found), _words(expected), found == expected))
    for label, errors, suspicious in of_jobs(options.data):
        codes = {error.code for error in errors}
        expected_codes = {"time_limit"} if "time limit" in label or "TIME LIMIT" in label or "SLURM time" in label else set()
        rows.append(Row(f"errors in a job's log: {label[:60]}", ", ".join(sorted(codes)) or "none", ", ".join(sorted(expected_codes)) or "none", codes == expected_codes, f"grep: {suspicious} lines"))
    for line in lines:
        if not line.right:
            print(f"not as labelled: {line.label['component']}: {line.label['line'][:120]}", file=sys.stderr)
    return report(rows, options.json, "lines of real logs")


def _words(found: set[tuple[str, int]]) -> str:
    return ", ".join(f"{component} {number}" if number >= 0 else component for component, number in sorted(found)) or "none"


if __name__ == "__main__":
    sys.exit(main())
