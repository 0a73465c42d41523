"""Which job of a scheduler a process is in, by its cgroup and its environment."""

from pathlib import Path

import pytest

from collectors.site.scheduler_jobs import (
    Pod,
    SchedulerJob,
    SchedulerJobs,
    SlurmTask,
    environment_of,
    pod_of,
    slurm_task,
)

UID = "0a1b2c3d-0000-1111-2222-0123456789ab"
INSIDE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "gpt-0"}


@pytest.mark.parametrize(
    ("cgroups", "job", "step"),
    [
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n", "7", "0"),
        ("0::/system.slice/gpu1_slurmstepd.scope/job_7/step_batch/user/task_special\n", "7", "batch"),
        ("4:memory:/slurm/uid_1000/job_280678/step_interactive/task_0\n1:cpu:/\n", "280678", "interactive"),
        ("0::/slurm_gpu1/uid_0/job_7\n", "7", ""),
    ],
)
def test_the_cgroup_names_job_and_step(cgroups: str, job: str, step: str) -> None:
    task = slurm_task(cgroups, {"SLURM_JOB_ID": "99", "SLURM_STEP_ID": "3", "SLURM_NODEID": "2", "SLURM_JOB_END_TIME": "1795590275"})
    assert task == SlurmTask(job, step, 2, 1795590275.0)


def test_where_slurm_makes_no_cgroups_the_environment_does() -> None:
    assert slurm_task("0::/\n", {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"})[:3] == ("7", "0", -1)  # type: ignore[index]


@pytest.mark.parametrize("job", ["", "7; reboot", "-1", "7_1", "٣", "1" * 30, "--json"])
def test_fault_what_is_no_number_of_a_job_is_none(job: str) -> None:
    assert slurm_task("0::/user.slice/job_7/x\n", {"SLURM_JOB_ID": job}) is None


@pytest.mark.parametrize(
    "cgroups",
    [
        f"0::/kubepods/burstable/pod{UID}/0f1e\n",
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-ff.scope\n",
        f"0::/../../kubepods-besteffort-pod{UID.replace('-', '_')}.slice/crio-ff.scope\n",
    ],
)
def test_the_cgroup_names_the_pod_also_from_within_another_pods(cgroups: str) -> None:
    assert pod_of(cgroups, INSIDE) == Pod(UID, "gpt-0")


def test_in_the_agents_own_pod_its_variables_do_and_a_host_that_is_no_pod_is_none() -> None:
    assert pod_of("0::/\n", {**INSIDE, "POD_NAMESPACE": "team"}) == Pod("", "gpt-0", "team")
    assert pod_of("0::/\n", {**INSIDE, "POD_NAME": "../secrets"}) is None
    assert pod_of("0::/user.slice\n", {"HOSTNAME": "n1"}) is None


def test_a_process_is_looked_at_once_and_one_that_is_gone_belongs_to_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_7/step_0\n")
    (folder / "environ").write_bytes(b"SLURM_NODEID=0\0torn\0\xff=\xff\0")
    jobs = SchedulerJobs(tmp_path)
    expected = {"t/gpt/r1": SchedulerJob(SlurmTask("7", "0", 0))}
    found = jobs.of({"t/gpt/r1": (7, 100)})
    assert str(found) == str(expected)
    (folder / "cgroup").write_text("0::/\n")
    assert str(jobs.of({"t/gpt/r1": (7, 100)})) == str(expected)
    assert jobs.of({"t/gpt/r1": (8, 100)}) == {"t/gpt/r1": SchedulerJob()}
    assert environment_of(8, tmp_path) == {}
