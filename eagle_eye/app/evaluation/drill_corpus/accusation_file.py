"""How often accusations of each cause were right in drills, as the file that calibrates confidence (detectors/diagnosis/confidence_counts.toml)."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import tomli_w

from eagle_eye.errors import ConfigError

from .drill_run import Accusation, DrillVerdict


def write_counts(path: Path, verdicts: Iterable[DrillVerdict], command: str) -> None:
    """With the command that made it. Raises ConfigError."""
    by_cause: defaultdict[str, list[Accusation]] = defaultdict(list)
    drills = 0
    for verdict in verdicts:
        drills += 1
        for accusation in verdict.accusations:
            by_cause[accusation.cause].append(accusation)
    causes = {cause: {"told": len(told), "right": sum(each.right for each in told)} for cause, told in sorted(by_cause.items())}
    try:
        path.write_text(tomli_w.dumps({"made_by": command, "drills": drills, "causes": causes}), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--counts {path}: cannot be written: {error.strerror}; name a file in a folder that is yours") from error
