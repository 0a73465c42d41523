"""`eagle-eye dashboard` as a person starts it: the address is printed once it answers, and Ctrl-C leaves nothing behind."""

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil

from eagle_eye.app.addresses import free_port
from eagle_eye.ledger import Ledger

PATIENCE_S = 60.0


def test_the_address_is_printed_when_it_answers_and_ctrl_c_ends_everything(tmp_path: Path) -> None:
    Ledger.open(tmp_path / "ledger.sqlite").close()
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "eagle_eye.app.cli", "dashboard", "--listen", address, "--state-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as started:
        try:
            assert started.stdout is not None
            assert f"http://{address}" in started.stdout.readline()
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://{address}/_stcore/health", timeout=10.0) as answer:
                assert answer.status == 200
            children = psutil.Process(started.pid).children(recursive=True)
            assert children
            started.send_signal(signal.SIGINT)
            assert started.wait(PATIENCE_S) == 0
            assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []
        finally:
            started.kill()
