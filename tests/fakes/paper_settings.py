"""Settings of a launcher whose command is never started."""

from pathlib import Path

from remediation.launcher.launcher_settings import LauncherSettings


def settings(tmp_path: Path, **changes: object) -> LauncherSettings:
    given = {"job": "t/n/r", "node": "n0", "command": ("python", "x.py"), "state_dir": tmp_path, "run_dir": tmp_path}
    return LauncherSettings(**given | changes)  # type: ignore[arg-type]
