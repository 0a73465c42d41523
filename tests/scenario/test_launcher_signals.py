"""Real launchers that are told to end, told something by a scheduler, or started twice: in whatever moment, and with their whole process group."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from eagle_eye.stop_signals import handles
from fakes.launchers import DEADLINE_S, LauncherCluster, free_ports, wait_until
from remediation.launcher.launcher import MOST_ZYGOTES_LOST


@pytest.mark.parametrize("node", ["n0", "n1"])
def test_a_second_launcher_of_one_node_name_costs_the_job_nothing(cluster: LauncherCluster, node: str) -> None:
    """Another machine with the same host name, or a start that was made twice."""
    cluster.both()
    elsewhere = cluster.directory / "elsewhere"
    cluster.ports += free_ports(1)
    second = cluster.launch(2, node=node, state_dir=elsewhere, checkpoint_dir=elsewhere)
    wait_until("its refusal to be told", lambda: "is the launcher on" in (cluster.directory / "launcher2.log").read_text())
    wait_until("the refusal in the stream", lambda: cluster.events("session.refused"))
    assert [layout.epoch for layout in cluster.layouts()] == [1]
    assert not cluster.events("exit")
    second.send_signal(signal.SIGTERM)
    assert second.wait(DEADLINE_S) == 130


def test_a_terminal_that_hangs_up_ends_a_launcher_in_order(cluster: LauncherCluster) -> None:
    cluster.both()
    for _ in range(3):
        cluster.launchers[0].send_signal(signal.SIGHUP)
    assert [launcher.wait(DEADLINE_S) for launcher in cluster.launchers.values()] == [130, 130]
    assert not list(cluster.run_dirs.glob("**/*.*")), "sockets and job files are removed"
    assert not list(Path("/dev/shm").glob(f"*{cluster.run}*"))


def test_a_launcher_can_be_stopped_while_what_its_workers_need_is_imported(cluster: LauncherCluster) -> None:
    (cluster.directory / "endless.py").write_text("import threading\nopen('importing', 'w').close()\nthreading.Event().wait()\n")
    process = cluster.launch(0, nnodes=(1, 1), preload=("endless",), environment=dict(os.environ, PYTHONPATH=str(cluster.directory)))
    wait_until("the import", (cluster.directory / "importing").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 130
    assert not list(cluster.run_dirs.glob("**/*.*"))


def test_a_schedulers_signal_reaches_workers_that_handle_it_and_ends_nobody(cluster: LauncherCluster) -> None:
    """Slurm's --signal=USR1 goes to whoever it has started, with its process group."""
    script = cluster.directory / "train.py"
    script.write_text("import os, signal\nif os.environ['RANK'] == '0':\n    signal.signal(signal.SIGUSR1, lambda *_: open('told', 'w').close())\n" + script.read_text())
    process = cluster.launch(0, nnodes=(1, 1))
    cluster.began(1)
    wait_until("steps", lambda: cluster.job(0)["workers"])
    children = [child.pid for child in psutil.Process(process.pid).children()]
    wait_until("the handler", lambda: handles(cluster.pids(0)[0], signal.SIGUSR1))
    for pid in (process.pid, *children):
        os.kill(pid, signal.SIGUSR1)
    wait_until("the worker to be told", (cluster.directory / "told").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 130
    assert not cluster.events("exit")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_group_that_is_told_to_end_gives_its_workers_their_time(cluster: LauncherCluster, number: signal.Signals) -> None:
    """As scancel, `timeout` and a terminal do."""
    script = cluster.directory / "train.py"
    script.write_text("import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: (open('saved', 'w').close(), os._exit(0)))\n" + script.read_text())
    process = cluster.launch(0, nnodes=(1, 1), nproc=1)
    cluster.began(1)
    wait_until("the handler", lambda: cluster.pids(0) and handles(cluster.pids(0)[0], signal.SIGTERM))
    for pid in (*(child.pid for child in psutil.Process(process.pid).children()), process.pid):
        os.kill(pid, number)
    assert process.wait(DEADLINE_S) == 130
    assert (cluster.directory / "saved").exists()
    assert not cluster.events("exit")


def zygote_of(cluster: LauncherCluster) -> int:
    """Beside it, the launcher has started the process that tests storage."""

    def running() -> Iterator[int]:
        for child in psutil.Process(cluster.launchers[0].pid).children():
            with suppress(psutil.Error):  # it has ended in between
                if child.status() != psutil.STATUS_ZOMBIE and not any("storage_test" in word for word in child.cmdline()):
                    yield child.pid

    return wait_until("a zygote", lambda: next(running(), 0))


def test_workers_are_started_again_by_another_zygote(cluster: LauncherCluster) -> None:
    """Whatever ends the process that forks them: the launcher went with it, and so did the job."""
    process = cluster.launch(0, nnodes=(1, 1))
    cluster.began(1)
    before = zygote_of(cluster)
    os.kill(before, signal.SIGKILL)
    assert cluster.began(2).attributes["reason"] == "death"
    assert zygote_of(cluster) != before
    assert {event.attributes["signal"] for event in cluster.events("exit")} == {"SIGKILL"}
    assert [bool(event.attributes["reason"]) for event in cluster.events("collector.failing")] == [True]
    wait_until("its return to be told", lambda: cluster.events("collector.recovered"))
    wait_until("the workers", lambda: len(cluster.pids(0)) == 2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 130


def test_twin_a_node_whose_zygotes_are_ended_again_and_again_is_given_up(cluster: LauncherCluster) -> None:
    process = cluster.launch(0, nnodes=(1, 1), heal="restart:20")
    for epoch in range(1, MOST_ZYGOTES_LOST + 2):
        cluster.began(epoch)
        os.kill(zygote_of(cluster), signal.SIGKILL)
    assert process.wait(DEADLINE_S) == 1
    assert "the zygote is gone" in (cluster.directory / "launcher0.log").read_text()
