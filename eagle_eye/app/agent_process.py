"""The agent's process."""

import signal
import threading

from collectors.agent.agent import run_agent
from eagle_eye.app import pid_file
from eagle_eye.app.plugin_wiring import log_to_stderr, make_directories
from eagle_eye.config import Config

PID_FILE = "agent.pid"
"""In the run directory of the node."""


def serve(config: Config, node: str, server: str) -> None:
    """Run this node's agent until Ctrl-C or SIGTERM. Raises ConfigError or PluginError."""
    log_to_stderr()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    make_directories(config)
    with pid_file.held(config.run / PID_FILE):
        run_agent(config, stop, node=node, server=server)
