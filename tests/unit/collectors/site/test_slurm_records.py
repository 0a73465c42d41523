"""What scontrol prints, as Slurm 22.05.8 printed it of two nodes and a job that another one preempted."""

import contextlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.site.scheduler_facts import NodeState
from collectors.site.slurm_records import job_in, node_state_in, notice_of, seconds_of_time

JOB = """JobId=1 JobName=a b PreemptTime=2020-01-01T00:00:00
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   RunTime=00:00:33 TimeLimit=00:10:00 TimeMin=N/A
   StartTime=2026-11-25T07:03:43 EndTime=2026-11-25T07:04:35 Deadline=N/A
   PreemptEligibleTime=2026-11-25T07:03:43 PreemptTime=2026-11-25T07:04:15
   NodeList=gpu[1-2]
   Comment=JobState=CANCELLED
   Command=/home/a/job.sh

"""
NODE = """NodeName=gpu2 Arch=x86_64 CoresPerSocket=1
   NodeAddr=127.0.0.1 NodeHostName=vm Port=17902 Version=22.05.8
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Reason=xid 79 on GPU 5 [root@2026-11-25T07:03:53]

"""
BEGAN, END = 1795590255.0, 1795590275.0


def running(end: str = "2026-11-25T07:13:43", state: str = "RUNNING", preempted: str = "None") -> str:
    return JOB.replace("2026-11-25T07:04:35", end).replace("JobState=RUNNING", f"JobState={state}").replace("2026-11-25T07:04:15", preempted)


def test_a_job_that_is_preempted_has_until_the_end_of_its_grace_time() -> None:
    job = job_in(JOB, "1")
    assert (job.state, job.end, job.preempted) == ("RUNNING", END, BEGAN)
    notice = notice_of(job, BEGAN, 300.0)
    assert notice is not None
    assert notice[:5] == ("slurm", "Slurm job 1", "preempted", BEGAN, END)


def test_a_time_limit_is_told_in_time_and_not_before_nor_where_there_is_none() -> None:
    job = job_in(running(), "1")
    assert notice_of(job, job.end - 301.0, 300.0) is None
    notice = notice_of(job, job.end - 299.0, 300.0)
    assert notice is not None
    assert (notice.reason, notice.began, notice.deadline) == ("time_limit", job.end, job.end)
    assert notice_of(job_in(running(end="Unknown"), "1"), BEGAN, 300.0) is None


@pytest.mark.parametrize(("state", "reason"), [("CANCELLED", "cancelled"), ("TIMEOUT", "time_limit"), ("PREEMPTED", "preempted"), ("NODE_FAIL", ""), ("FAILED", ""), ("COMPLETED", "")])
def test_a_job_that_slurm_has_ended_is_told_apart_from_one_that_broke(state: str, reason: str) -> None:
    notice = notice_of(job_in(running(state=state), "1"), BEGAN, 300.0)
    assert (notice.reason if notice else "") == reason


def test_of_an_array_the_record_of_the_job_counts() -> None:
    text = running(state="CANCELLED").replace("JobId=1 ", "JobId=2 ") + "\n" + running()
    assert job_in(text, "1").state == "RUNNING"
    with pytest.raises(ValueError, match="no record of job 3"):
        job_in(text, "3")


@pytest.mark.parametrize(
    ("state", "states"),
    [
        ("ALLOCATED+DRAIN", ("drain",)), ("DOWN*+DRAIN", ("down", "not_responding", "drain")), ("IDLE*", ("not_responding",)), ("MIXED", ()),
        ("IDLE+PLANNED", ()), ("IDLE~", ()), ("DOWN", ("down",)), ("IDLE+MAINTENANCE+RESERVED", ("maintenance",)), ("FAIL", ("fail",)), ("MIXED-", ()),
    ],
)  # fmt: skip
def test_what_is_out_of_the_ordinary_of_a_node_is_told_with_its_reason(state: str, states: tuple[str, ...]) -> None:
    assert node_state_in(NODE.format(state=state)) == NodeState("slurm", states, "xid 79 on GPU 5 [root@2026-11-25T07:03:53]")


def test_a_reason_without_end_is_cut_and_no_record_is_named() -> None:
    assert len(node_state_in(NODE.format(state="DOWN").replace("xid 79", "x" * 10_000)).reason) == 400
    with pytest.raises(ValueError, match="no record of a node"):
        node_state_in("Node gpu3 not found\n")


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.text(max_size=300), st.integers(0, len(JOB)).map(lambda end: JOB[:end])))
def test_whatever_is_printed_is_a_record_or_refused(text: str) -> None:
    for read in (lambda: notice_of(job_in(text, "1"), BEGAN, 300.0), lambda: node_state_in(text)):
        with contextlib.suppress(ValueError):
            read()


def test_times_that_are_none_are_none() -> None:
    assert all(math.isnan(seconds_of_time(text)) for text in ("", "N/A", "None", "Unknown", "2026-13-45T99:00:00", "1-00:00:00"))
