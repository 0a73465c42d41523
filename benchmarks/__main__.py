"""`make bench`: runs every benchmark and writes benchmarks/RESULTS.md.

python -m benchmarks [NAME ...]
"""

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path

BENCHMARKS = (
    "benchmarks.chain.probe",
    "benchmarks.chain.stream",
    "benchmarks.chain.frames",
    "benchmarks.chain.restart",
    "benchmarks.chain.detection",
    "benchmarks.chain.overhead",
    "benchmarks.chain.replay",
    "benchmarks.chain.fresh_clone",
)
RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> int:
    """Run them one after another; a missed goal is written down, not hidden."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="names of benchmarks, e.g. benchmarks.chain.probe; default: all")
    chosen = parser.parse_args().only or BENCHMARKS
    parts = [f"# Results\n\nWritten by `make bench` on {platform.machine()}, Python {platform.python_version()}. Run it again on your machine.\n"]
    failed = False
    for name in chosen:
        print(f"{name} ...", flush=True)
        done = subprocess.run([sys.executable, "-m", name, "--json"], stdout=subprocess.PIPE, text=True)
        try:
            parts.append(section(name, json.loads(done.stdout)))
        except ValueError:
            parts.append(f"\n## `python -m {name}`\n\nended with {done.returncode} and printed no result.\n")
            failed = True
    RESULTS.write_text("".join(parts))
    print(RESULTS.read_text())
    return int(failed)


def section(name: str, result: dict[str, object]) -> str:
    """One benchmark as a Markdown table."""
    rows: list[dict[str, object]] = result["rows"]  # type: ignore[assignment]
    lines = [f"\n## `python -m {name}`\n", "| what | figure | goal | met | beside | ratio |", "|---|---|---|---|---|---|"]
    words = {True: "yes", False: "**no**", None: ""}
    for row in rows:
        met = words[row["met"]]  # type: ignore[index]
        lines.append(f"| {row['what']} | {row['figure']} | {row['goal']} | {met} | {row['peer']} | {row['ratio']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
