"""Who wrote a line that is kept with the kernel's: the kernel, or a program that may only quote it."""

import json

import pytest

from collectors.log.log_prefix import PROGRAM, kernel_line

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus."
ISO = "2025-07-03T04:05:06"

OF_THE_KERNEL = [
    XID,
    f"[  12.5] {XID}",
    f"<3>[  12.5] {XID}",
    f"3,1234,12345678,-;{XID}",
    f"kern  :err   : [Thu Jul  3 04:05:06 2025] {XID}",
    f"kern  :err   : {ISO},123456+00:00 {XID}",
    f"{ISO},123456+00:00 {XID}",
    f"{ISO},123456+00:00 nvme nvme0: controller is down; will reset",
    f"[Thu Jul  3 04:05:06 2025] {XID}",
    f"Jul  3 04:05:06 gpu-1 kernel: {XID}",
    f"Jul  3 04:05:06 gpu-1 kernel: [  12.5] {XID}",
    f"Jul  3 04:05:06 gpu-1 kernel[0]: {XID}",
    f"Jul  3 04:05:06 gpu-1 kern.err kernel: {XID}",
    f"Jul  3 04:05:06 gpu-1 {XID}",
    f"{ISO}.123456+00:00 gpu-1 kernel: {XID}",
    f"{ISO}+0000 gpu-1 kernel: {XID}",
    f"{ISO}.1Z {XID}",
    "Jul  3 04:05:06 gpu-1 nv-fabricmanager[841]: detected NVSwitch fatal error 20034",
    "Jul  3 04:05:06 gpu-1 nvidia-fabricmanager: detected NVSwitch fatal error 20034",
    "[Jul 03 2025 04:05:06] [ERROR] [tid 841] detected NVSwitch fatal error 20034",
    "[  12.5] python3[1234]: segfault at 7f0 ip 00007f1 sp 00007ff error 4 in libnccl.so.2",
    "Jul  3 04:05:06 gpu-1 kernel: python3[1234]: segfault at 7f0 ip 00007f1 sp 00007ff error 4 in libnccl.so.2",
    json.dumps({"MESSAGE": XID}),
    json.dumps({"MESSAGE": XID, "_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel", "SYSLOG_FACILITY": "0"}),
    json.dumps({"MESSAGE": XID, "_TRANSPORT": "kernel"}),
    json.dumps({"MESSAGE": XID, "_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "nv-fabricmanager"}),
]

OF_A_PROGRAM = [
    (f'Jul  3 04:05:06 gpu-1 dcgm-watch[99]: saw "{XID}" yesterday', "dcgm-watch"),
    ("Jul  3 04:05:06 gpu-1 sudo[812]: ops : COMMAND=/usr/bin/grep NVRM: Xid (PCI:0000:9b:00): 48 /var/log/syslog", "sudo"),
    ("Jul  3 04:05:06 gpu-1 sudo:     root : COMMAND=/usr/bin/grep NVRM: Xid (PCI:0000:9b:00): 48 /var/log/syslog", "sudo"),
    ("Jul  3 04:05:06 gpu-1 authpriv.notice sudo: COMMAND=/usr/bin/grep NVRM: Xid (PCI:0000:9b:00): 48", "sudo"),
    ("Jul  3 04:05:06 gpu-1 systemd[1]: Out of memory: Killed process 12 (x)", "systemd"),
    (f"{ISO}.123456+00:00 gpu-1 python[99]: XFS (sda): Corruption detected", "python"),
    (f"{ISO}+0000 gpu-1 health check[7]: {XID}", "health check"),
    (f"12,101,300,-;runbook[1]: replay of {XID}", PROGRAM),
    (f"<12>[  12.5] {XID}", PROGRAM),
    (f"user  :notice: [  12.5] {XID}", PROGRAM),
    (f"daemon:info  : [Thu Jul  3 04:05:06 2025] systemd[1]: {XID}", "systemd"),
    (f"[  12.5] runbook[1]: replay of {XID}", "runbook"),
    (f"python[12]: searching for {XID}", "python"),
    (json.dumps({"MESSAGE": XID, "_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "watch"}), "watch"),
    (json.dumps({"MESSAGE": XID, "_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "kernel"}), PROGRAM),
    (json.dumps({"MESSAGE": XID, "_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "runbook", "SYSLOG_FACILITY": "1"}), "runbook"),
]


@pytest.mark.parametrize("line", OF_THE_KERNEL)
def test_a_line_of_the_kernel_a_driver_or_the_fabric_manager_is_no_programs(line: str) -> None:
    assert kernel_line(line, 0.0).written_by == ""


@pytest.mark.parametrize(("line", "program"), OF_A_PROGRAM)
def test_a_line_that_a_program_wrote_names_it(line: str, program: str) -> None:
    assert kernel_line(line, 0.0).written_by == program
