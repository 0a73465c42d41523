"""The end of the processes of one machine."""

import msgspec

from eagle_eye.app.local_cluster import LAUNCHERS_S
from remediation.launcher.launcher_settings import LauncherSettings


def test_a_launcher_has_time_to_kill_its_workers_and_to_clear_up() -> None:
    given = {each.name: each.default for each in msgspec.structs.fields(LauncherSettings)}
    assert given["stop_grace_s"] + 10.0 <= LAUNCHERS_S
