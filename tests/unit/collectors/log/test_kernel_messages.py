"""What lines of the kernel's log say, and their prefixes."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.log.kernel_messages import KernelMessages, pci_address_of
from collectors.log.log_prefix import journal_entry, kernel_line, kmsg_record
from eagle_eye.errors import ConfigError

TABLE = KernelMessages()

FAULTS = [
    ("NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC response", ("gpu", "xid")),
    ("NVRM: GPU 18:00.0: GPU has fallen off the bus.", ("gpu", "fell_off_the_bus")),
    ("NVRM: GPU at PCI:0000:29:00: GPU has fallen off the bus.", ("gpu", "fell_off_the_bus")),
    ("NVRM: GPU 0000:5e:00.0: RmInitAdapter failed! (0x22:0x56:751)", ("gpu", "driver_init_failed")),
    ("NVRM: API mismatch: the client has the version 550.54.15, but this kernel module has the version 535.129.03.", ("gpu", "driver_mismatch")),
    ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error", ("nvswitch", "sxid")),
    ("[ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33", ("nvswitch", "sxid")),
    ("[ERROR] [tid 12] failed to find the GPU handle 541 in the multicast team request setup 61.", ("nvswitch", "fabric_manager")),
    ("Out of memory: Killed process 8423 (python3) total-vm:9180kB, anon-rss:7000kB, UID:0 pgtables:44kB oom_score_adj:100", ("memory", "oom_kill")),
    ("Memory cgroup out of memory: Killed process 77 (pt_main_thread) total-vm:9kB", ("memory", "oom_kill")),
    (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg=/job,task_memcg=/job,task=python3,pid=77,uid=0",
        ("memory", "oom_kill"),
    ),
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0", ("memory", "edac_uncorrected")),
    ("Memory failure: 0x2a5c3b: recovery action for dirty LRU page: Recovered", ("memory", "memory_failure")),
    ("mce: [Hardware Error]: CPU 12: Machine check events logged: Uncorrected error", ("cpu", "machine_check")),
    ("{1}[Hardware Error]: event severity: fatal", ("cpu", "machine_check")),
    ("watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]", ("cpu", "soft_lockup")),
    ("watchdog: Watchdog detected hard LOCKUP on cpu 4", ("cpu", "hard_lockup")),
    ("INFO: task kworker/u32:2:114 blocked for more than 120 seconds.", ("cpu", "hung_task")),
    ("rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", ("cpu", "rcu_stall")),
    ("CPU3: Package temperature above threshold, cpu clock throttled (total events = 12)", ("cpu", "thermal")),
    ("Kernel panic - not syncing: Fatal exception", ("kernel", "panic")),
    ("BUG: unable to handle page fault for address: ffffffffc0a1", ("kernel", "oops")),
    ("python3[4711]: segfault at 0 ip 00007f sp 00007f error 4 in libnccl.so.2.19.3[7f+d3]", ("process", "segfault_in_nccl")),
    ("pcieport 0000:16:02.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0", ("pcie", "aer_fatal")),
    ("pcieport 0000:16:02.0: AER: Multiple Uncorrected (Non-Fatal) error received: 0000:17:00.0", ("pcie", "aer_nonfatal")),
    ("mlx5_core 0000:5c:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer", ("pcie", "bus_error")),
    ("pcieport 0000:00:03.1: pciehp: Slot(4): Link Down", ("pcie", "link_down")),
    ("mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, Bus stuck", ("network", "port_module")),
    ("mlx5_core 0000:5c:00.0: poll_health:957:(pid 0): device's health compromised - reached miss count", ("network", "firmware")),
    ("mlx5_core 0000:98:00.0 ens6np0: Link down", ("network", "link_down")),
    ("igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Down", ("network", "link_down")),
    ("NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out 5120 ms", ("network", "transmit_timeout")),
    ("blk_update_request: I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x0", ("disk", "io_error")),
    ("critical medium error, dev nvme1n1, sector 99 op 0x0:(READ)", ("disk", "medium_error")),
    ("nvme nvme2: I/O tag 12 (100c) opcode 0x2 QID 3 timeout, reset controller", ("disk", "nvme_timeout")),
    ("nvme nvme2: Disabling device after reset failure: -19", ("disk", "nvme_disabled")),
    ("EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2: comm python: reading directory lblock 0", ("filesystem", "error")),
    ("EXT4-fs (sda1): Remounting filesystem read-only", ("filesystem", "read_only")),
    ("XFS (dm-3): log I/O error -5", ("filesystem", "error")),
    ("nfs: server filer-2 not responding, still trying", ("network_filesystem", "not_responding")),
    ("LustreError: 11-0: scratch-OST0007: operation ost_read failed with -110.", ("network_filesystem", "lustre_error")),
    (
        "Lustre: scratch-OST0007: Connection to scratch-OST0007 (at 10.0.0.7@o2ib) was lost; in progress operations will wait",
        ("network_filesystem", "lustre_lost"),
    ),
]

INNOCENT = [
    "nvidia-nvswitch2: open (major=510)",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03",
    "NVRM: GPU Board Serial Number: 1650124014249",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    "perf: interrupt took too long (2509 > 2500), lowering kernel.perf_event_max_sample_rate to 79500",
    "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.",
    "EXT4-fs (sda1): re-mounted. Opts: errors=remount-ro",
    "XFS (dm-3): Ending clean mount",
    "ata1: SATA link down (SStatus 0 SControl 300)",
    "nvme nvme0: 16/0/0 default/read/poll queues",
    "mlx5_core 0000:5c:00.0: firmware version: 28.36.1010",
    "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0: DEV 0000:3a:0a.0 (INTERRUPT)",
    "mce: CPU supports 20 MCE banks",
    "rcu: Hierarchical RCU implementation.",
    "pci 0000:17:00.0: [10de:2330] type 00 class 0x030200",
    "pcieport 0000:16:02.0: AER: enabled with IRQ 34",
    "oom_score_adj of 4711 was set to 100",
    "[INFO] [tid 1808] multicast group 1 is allocated.",
    "Lustre: Lustre: Build Version: 2.15.3",
    "Command line: BOOT_IMAGE=/vmlinuz panic=10 nmi_watchdog=0",
]


@pytest.mark.parametrize(("line", "says"), FAULTS)
def test_a_line_is_known(line: str, says: tuple[str, str]) -> None:
    message = TABLE.read(line)
    assert message is not None
    assert (message.component, message.code, message.level) == (*says, "error")


@pytest.mark.parametrize("line", INNOCENT)
def test_twin_a_line_of_a_healthy_machine_says_nothing(line: str) -> None:
    assert TABLE.read(line) is None


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0", "edac_corrected"),
        ("pcieport 0000:16:02.0: AER: Corrected error received: 0000:17:00.0", "corrected"),
        ("python3[4711]: segfault at 0 ip 00007f sp 00007f error 4 in python3.11[55+2]", "segfault"),
        ("mlx5_core 0000:98:00.0 ens6np0: Link up", "link_up"),
        ("nfs: server filer-2 OK", "recovered"),
        ("oom_reaper: reaped process 345646 (vector), now anon-rss:0kB", "oom_details"),
        ("mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 26): Detected insufficient power on the PCIe slot (27W).", "power"),
    ],
)
def test_twin_what_was_corrected_or_recovered_is_a_notice(line: str, code: str) -> None:
    message = TABLE.read(line)
    assert message is not None
    assert (message.code, message.level) == (code, "notice")


def test_an_xid_says_whose_and_what_the_driver_adds() -> None:
    message = TABLE.read("NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x8)")
    assert message is not None
    assert (message.number, message.qualifier, message.pci) == (145, "nonfatal", "0018:01:00.0")
    assert (message.pid, message.process) == (876767, "ray::WorkerDict")


def test_a_process_that_the_driver_does_not_know_has_no_pid() -> None:
    message = TABLE.read("NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    assert message is not None
    assert (message.number, message.pid, message.process) == (79, 0, "")


@pytest.mark.parametrize(
    ("text", "address"),
    [("0000:9b:00", "0000:9b:00.0"), ("18:00.0", "0000:18:00.0"), ("00000000:86:00.0", "0000:86:00.0"), ("0000:9B:00.1", "0000:9b:00.1"), ("x", ""), ("", "")],
)
def test_addresses_have_one_form(text: str, address: str) -> None:
    assert pci_address_of(text) == address


@pytest.mark.parametrize(
    ("line", "time", "text"),
    [
        ("4,12,1500000,-;NVRM: loaded", 101.5, "NVRM: loaded"),
        ("<4>[  201.654822] BUG: unable", 301.654822, "BUG: unable"),
        ("[   12.5] x", 112.5, "x"),
        ("[Sun Feb 23 16:24:18 2025] NVRM: y", 1740327858.0, "NVRM: y"),
        ("kern  :warn  : 2025-01-21T04:41:44,283302+00:00 NVRM: z", 1737434504.283302, "NVRM: z"),
        ("2025-01-21T04:41:44.5+02:00 gpu-7 kernel: [  9.1] NVRM: z", 1737427304.5, "NVRM: z"),
        ("[Jul 23 2024 07:53:55] [ERROR] [tid 841] w", 1721721235.0, "[ERROR] [tid 841] w"),
        ("Jan 21 04:41:44 gpu-7 kernel: NVRM: no year", math.nan, "NVRM: no year"),
        ("Jan 21 04:41:44.123456 gpu-7 kernel: NVRM: precise", math.nan, "NVRM: precise"),
        ('{"__REALTIME_TIMESTAMP": "1737434504283302", "_TRANSPORT": "kernel", "MESSAGE": "NVRM: z"}', 1737434504.283302, "NVRM: z"),
        ('{"MESSAGE": [78, 86, 255]}', math.nan, "NV\ufffd"),
        ('{"torn": "NVRM: z', math.nan, '{"torn": "NVRM: z'),
        ("Jan 21 04:41:44 gpu-7 kernel: [ 9.0] NVRM: since boot", 109.0, "NVRM: since boot"),
        ("2025-02-30T04:41:44+00:00 no such day", math.nan, "no such day"),
        ("plain text: a, b", math.nan, "plain text: a, b"),
    ],
)
def test_each_form_of_prefix_is_taken_off(line: str, time: float, text: str) -> None:
    found = kernel_line(line, boot_time=100.0)
    assert found.text == text
    assert found.time == pytest.approx(time, nan_ok=True)


def test_a_record_that_a_program_wrote_is_told_from_the_kernels() -> None:
    of_kernel, of_program = kmsg_record(b"3,7,9,-;a"), kmsg_record(b"11,8,9,-;a")
    assert of_kernel is not None
    assert of_program is not None
    assert (of_kernel.of_kernel, of_program.of_kernel) == (True, False)


@given(st.sampled_from([line for line, _ in FAULTS]), st.data())
def test_no_truncation_and_no_other_bytes_stop_it(line: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(line)))
    rest = data.draw(st.text(max_size=40))
    TABLE.read(kernel_line(line[:cut] + rest, 0.0).text)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)))
def test_any_entry_of_the_journal_is_read_or_refused(junk: object) -> None:
    for whole in (junk, {"MESSAGE": junk}, {"MESSAGE": "NVRM: x", "__REALTIME_TIMESTAMP": junk, "__CURSOR": junk}):
        entry = journal_entry(json.dumps(whole).encode())
        assert entry is None or isinstance(entry.text, str)


@given(st.binary(max_size=200))
def test_any_bytes_are_no_entry_of_the_journal(data: bytes) -> None:
    journal_entry(data)
    assert journal_entry(b"[" * 100_000) is None


@given(st.binary(max_size=200))
def test_any_record_of_the_device_is_read_or_refused(data: bytes) -> None:
    kmsg_record(data)


def test_rows_of_ones_own_count_first(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[[message]]\ncomponent = "disk"\ncode = "of_our_own"\npattern = "mydriver: (?P<detail>.*)"\n')
    message = KernelMessages(own).read("mydriver: out of spares")
    assert message is not None
    assert (message.code, message.detail) == ("of_our_own", "out of spares")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[message]]\ncomponent = 'disk'\ncode = 'a'\npattern = '('\n", "own.toml: a: pattern"),
        ("[[message]]\ncomponent = 'moon'\ncode = 'a'\npattern = 'x'\n", "own.toml: a: component 'moon' is none of gpu"),
        ("[[message]]\ncomponent = 'disk'\ncode = 'a'\npattern = '(?P<job>x)'\n", "the group name job is taken"),
        ("[[message]]\ncode = 3\n", "own.toml: "),
        ("[[message", "own.toml: "),
        pytest.param("a = " + "[" * 100_000, "own.toml: ", id="nested without end"),
        pytest.param("a = " + "1" * 10_000, "own.toml: ", id="a number without end"),
    ],
)
def test_a_table_that_cannot_be_used_is_named(tmp_path: Path, text: str, words: str) -> None:
    own = tmp_path / "own.toml"
    own.write_text(text)
    with pytest.raises(ConfigError, match=r"own\.toml") as refused:
        KernelMessages(own)
    assert words in str(refused.value)
