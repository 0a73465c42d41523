"""What deploy/ hands to systemd and Kubernetes is what the product understands."""

import re
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
CONTAINER: dict[str, Any] = MANIFESTS["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]
NEEDED = {"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_SYSLOG"}


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
    volumes = {each["name"] for each in MANIFESTS["DaemonSet"]["spec"]["template"]["spec"]["volumes"]}
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
    pod = MANIFESTS["DaemonSet"]["spec"]["template"]["spec"]
    account = MANIFESTS["ServiceAccount"]["metadata"]
    assert pod["serviceAccountName"] == account["name"]
    assert pod.get("automountServiceAccountToken", True)
    assert MANIFESTS["ClusterRoleBinding"]["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert MANIFESTS["ClusterRoleBinding"]["roleRef"]["name"] == MANIFESTS["ClusterRole"]["metadata"]["name"]
