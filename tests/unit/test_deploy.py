"""What deploy/ hands to systemd and Kubernetes is what the product understands."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from eagle_eye.app.commands.agent import command
from eagle_eye.config import Config, parse

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = (DEPLOY / "systemd" / "eagle-eye-agent.service").read_text()
MANIFESTS: dict[str, Any] = {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes" / "eagle-eye-agent.yaml").read_text())}
POD: dict[str, Any] = MANIFESTS["DaemonSet"]["spec"]["template"]["spec"]
CONTAINER: dict[str, Any] = POD["containers"][0]
NEEDED = {"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_SYSLOG"}
NEEDED_CALLS = {
    "adjtimex": "@clock", "clock_adjtime": "@clock",  # collectors/node/clock_offset.py; the C library takes the latter
    "ptrace": "@debug", "process_vm_readv": "@ipc", "kcmp": "@system-service",  # py-spy
    "pidfd_open": "@process", "prctl": "@process", "execve": "@default", "wait4": "@process", "setsid": "@system-service",  # processes that are watched or started
    "ioctl": "@system-service", "statfs": "@file-system", "openat": "@file-system", "preadv": "@basic-io", "fsync": "@sync", "flock": "@system-service",
    "mmap": "@default", "socket": "@network-io", "connect": "@network-io", "bind": "@network-io", "poll": "@io-event", "epoll_wait": "@io-event",
    "sched_getaffinity": "@default", "setpriority": "@resources",
}  # fmt: skip
"""Calls of the kernel that collectors and the programs which they start make → the smallest of systemd's sets that has each."""
OF_SERVICES = {
    "@system-service", "@aio", "@basic-io", "@chown", "@default", "@file-system", "@io-event", "@ipc", "@keyring", "@memlock", "@network-io", "@process", "@resources",
    "@setuid", "@signal", "@sync", "@timer",
}  # fmt: skip
"""What @system-service consists of (systemd.exec(5))."""


def options_of(words: list[str]) -> set[str]:
    return {word for word in words if word.startswith("--")}


@pytest.mark.parametrize("words", [CONTAINER["command"], re.search(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)[1].split()])  # type: ignore[index]
def test_the_agent_knows_the_options_that_it_is_started_with(words: list[str]) -> None:
    shown = CliRunner().invoke(command, ["--help"]).output
    assert words[1] == "agent"
    assert all(option in shown for option in options_of(words))


def test_the_configuration_of_the_daemonset_is_read_and_its_directories_are_mounted() -> None:
    config: Config = parse(MANIFESTS["ConfigMap"]["data"]["config.toml"])
    mounted = {each["mountPath"] for each in CONTAINER["volumeMounts"]}
    assert {str(config.state), str(config.run), "/dev/shm", "/dev/kmsg"} <= mounted
    volumes = {each["name"] for each in POD["volumes"]}
    assert {each["name"] for each in CONTAINER["volumeMounts"]} == volumes


def test_both_give_it_the_same_rights_and_no_more() -> None:
    of_unit = set(re.search(r"^CapabilityBoundingSet=(.*)$", UNIT, re.MULTILINE)[1].split())  # type: ignore[index]
    of_pod = {f"CAP_{name}" for name in CONTAINER["securityContext"]["capabilities"]["add"]}
    assert of_unit == of_pod == NEEDED
    assert CONTAINER["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert "DeviceAllow=/dev/kmsg r" in UNIT


def test_the_agent_is_never_throttled_when_a_hang_is_to_be_found() -> None:
    assert "cpu" not in CONTAINER["resources"]["limits"]
    assert "CPUQuota" not in UNIT


def test_the_agent_may_read_its_node_and_pods_and_nothing_else_and_has_a_token_for_it() -> None:
    rules = {(resource, verb) for rule in MANIFESTS["ClusterRole"]["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert rules == {("nodes", "get"), ("pods", "list")}
    account = MANIFESTS["ServiceAccount"]["metadata"]
    assert POD["serviceAccountName"] == account["name"]
    assert POD.get("automountServiceAccountToken", True)
    assert MANIFESTS["ClusterRoleBinding"]["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert MANIFESTS["ClusterRoleBinding"]["roleRef"]["name"] == MANIFESTS["ClusterRole"]["metadata"]["name"]


# --- the node's own network, in Kubernetes


def test_the_pod_is_in_the_network_of_its_node_and_finds_the_server_by_its_name() -> None:
    assert (POD["hostPID"], POD["hostNetwork"], POD["dnsPolicy"]) == (True, True, "ClusterFirstWithHostNet")
    assert "ports" not in CONTAINER, "a port of the agent would be one of the node"
    assert MANIFESTS["Namespace"]["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "privileged"}, "else no pod may be in the node's network"


# --- the sandbox of the unit


def settings_of(key: str) -> list[str]:
    return [word for line in re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE) for word in line.split()]


def test_the_sandbox_allows_every_call_that_collectors_make() -> None:
    allowed = set(settings_of("SystemCallFilter"))
    assert "@system-service" in allowed
    assert not any(word.startswith("~") for word in allowed)
    refused = {call for call, of in NEEDED_CALLS.items() if call not in allowed and of not in allowed | OF_SERVICES}
    assert refused == set()
    assert "ProtectClock" not in re.sub(r"^#.*$", "", UNIT, flags=re.MULTILINE), "it refuses all of @clock, whatever the filter says"
    assert "@clock" not in allowed, "nobody has to set the clock"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemds_sets_have_the_calls_that_are_taken_for_theirs() -> None:
    sets = (*sorted(OF_SERVICES), "@debug", "@clock")
    shown = subprocess.run(["systemd-analyze", "syscall-filter", *sets], capture_output=True, text=True, check=True, timeout=30).stdout
    members = {part.split()[0]: set(part.split()[1:]) for part in re.split(r"^(?=@)", shown, flags=re.MULTILINE) if part.strip()}
    assert {call: of for call, of in NEEDED_CALLS.items() if call not in members[of]} == {}
    assert OF_SERVICES - {"@system-service"} <= members["@system-service"]


def test_the_devices_of_gpus_and_of_their_parts_stay_reachable() -> None:
    assert settings_of("DevicePolicy") == ["closed"]
    assert {"char-nvidia", "char-nvidia-caps", "/dev/nvidiactl", "/dev/kmsg"} <= set(settings_of("DeviceAllow"))


def test_what_programs_write_is_in_the_run_directory_that_the_sandbox_leaves_writable() -> None:
    assert settings_of("ProtectSystem") == ["strict"]
    run_dir = re.search(r"--run-dir (\S+)", UNIT)[1]  # type: ignore[index]
    assert run_dir == f"/run/{settings_of('RuntimeDirectory')[0]}"


def test_sockets_of_the_kernel_and_of_workers_may_be_opened() -> None:
    assert {"AF_UNIX", "AF_NETLINK", "AF_INET", "AF_INET6"} <= set(settings_of("RestrictAddressFamilies"))
