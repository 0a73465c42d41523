"""The dashboard as a person starts it, and as a demo does: the address is printed once it answers, and nothing is left behind."""

import signal
import subprocess
import sys
import urllib.request
from io import StringIO
from pathlib import Path

import psutil
from rich.console import Console

from eagle_eye.app.demo.demo_dashboard import DemoDashboard
from eagle_eye.clock import SystemClock
from eagle_eye.ledger import Ledger
from eagle_eye.ports import free_port

PATIENCE_S = 150.0


def answers(url: str) -> bool:
    """Whether a dashboard is there."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/_stcore/health", timeout=PATIENCE_S) as answer:
        return bool(answer.status == 200)


def test_the_recorded_run_is_opened_its_address_printed_and_ctrl_c_ends_everything() -> None:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "eagle_eye.app.cli", "dashboard", "--listen", address, "--demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as started:
        try:
            assert started.stdout is not None
            assert f"http://{address}" in started.stdout.readline()
            assert answers(f"http://{address}")
            children = psutil.Process(started.pid).children(recursive=True)
            assert children
            started.send_signal(signal.SIGINT)
            assert started.wait(PATIENCE_S) == 0
            assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []
        finally:
            started.kill()


def test_a_demo_prints_the_address_and_leaves_the_pages_of_the_run_there(tmp_path: Path) -> None:
    state, told = tmp_path / "state", StringIO()
    Ledger.open(state / "ledger.sqlite").close()
    config_file = tmp_path / "eagle-eye.toml"
    config_file.write_text('[server]\nhttp = ""\n')
    clock = SystemClock()
    listen = f"127.0.0.1:{free_port()}"  # not the usual one: another test, or a demo, may take that one at the same moment
    pages = DemoDashboard(folder=tmp_path, console=Console(file=told, width=200), clock=clock, listen=listen, nice=0)  # who steps back may wait for minutes on a busy machine
    try:
        pages.open(config_file, state)
        deadline = clock.monotonic() + PATIENCE_S
        while not told.getvalue() and clock.monotonic() < deadline:
            pages.look()
            clock.sleep(0.05)
        assert told.getvalue() == f"dashboard: http://{listen}\n"
        address = pages.url
        assert pages.reopen()
        assert pages.url == address
        assert answers(address)
    finally:
        pages.close()
