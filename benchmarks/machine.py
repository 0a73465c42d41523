"""What a virtual machine's neighbours took of it while something was measured."""

from collections.abc import Callable

import psutil

from benchmarks.report import Row


def neighbours() -> Callable[[], Row]:
    """Begin; what is returned gives the row at the end: the share of all processor time that was wanted and not given (/proc/stat, steal)."""
    before = psutil.cpu_times()

    def row() -> Row:
        after = psutil.cpu_times()
        share = (after.steal - before.steal) / max(1e-9, sum(after) - sum(before))
        return Row("processor time that other machines took meanwhile", f"{share:.0%}", peer="above 5 % the times above say little")

    return row
