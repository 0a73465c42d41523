"""A network of its own: nodes in network namespaces, on one switch whose links can be cut and mended. Linux, root, iproute2."""

import ctypes
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "eagle-eye-test"
SUBNET = "10.77.0"
TRAINING_SUBNET = "10.78.0"
TRAINING_INTERFACE = "training0"
CLONE_NEWNET = 0x40000000
_numbers = itertools.count()


class Network:
    """`nodes` machines and a switch, which has an address, too. None of it is seen by, or sees, the machine's own network.

    A link is cut as if its cable was pulled: nobody is told, packets are lost. `training`: the nodes have a second network, on which
    their workers can meet (TRAINING_INTERFACE) and which is never cut.
    """

    def __init__(self, nodes: int, *, training: bool = False) -> None:
        _refuse_without_means()
        remove_what_dead_runs_left()
        self._name = f"{PREFIX}-{os.getpid()}-{_birth(os.getpid())}-{next(_numbers)}"
        self._nodes = range(nodes)
        self._training = training
        self.server = f"{SUBNET}.254"
        """Address of the switch."""
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        switch = self._switch
        for name in [switch, *map(self._node, self._nodes)]:
            _ip(f"netns add {name}")
            _ip(f"-n {name} link set lo up")
        self._connect("switch", "port", "eth0", SUBNET)
        _ip(f"-n {switch} address add {self.server}/24 dev switch")
        if self._training:
            self._connect("training", "lane", TRAINING_INTERFACE, TRAINING_SUBNET)

    def _connect(self, bridge: str, port: str, interface: str, subnet: str) -> None:
        """All nodes to a bridge, which passes packets on at once."""
        switch = self._switch
        _ip(f"-n {switch} link add {bridge} type bridge forward_delay 0")
        _ip(f"-n {switch} link set {bridge} up")
        for node in self._nodes:
            name = self._node(node)
            _ip(f"-n {switch} link add {port}{node} type veth peer name {interface} netns {name}")
            _ip(f"-n {switch} link set {port}{node} master {bridge} up")
            _ip(f"-n {name} address add {subnet}.{node + 1}/24 dev {interface}")
            _ip(f"-n {name} link set {interface} up")

    def address(self, node: int) -> str:
        return f"{SUBNET}.{node + 1}"

    def inside(self, node: int) -> tuple[str, ...]:
        """Words before a command that is to run on a node; the process is the command itself."""
        return ("ip", "netns", "exec", self._node(node))

    @property
    def inside_switch(self) -> tuple[str, ...]:
        """The same for what is to run where the switch is."""
        return ("ip", "netns", "exec", self._switch)

    @contextmanager
    def entered(self, node: int | None) -> Iterator[None]:
        """What this thread starts meanwhile runs on that node; None: where the switch is."""
        with Path("/proc/thread-self/ns/net").open() as own, _file_of(self._switch if node is None else self._node(node)).open() as other:
            _enter(other.fileno())
            try:
                yield
            finally:
                _enter(own.fileno())

    def part(self) -> None:
        """No node reaches another one any more; all of them reach the switch."""
        for node in self._nodes:
            _ip(f"-n {self._switch} link set port{node} type bridge_slave isolated on")

    def unite(self) -> None:
        """As before `part`."""
        for node in self._nodes:
            _ip(f"-n {self._switch} link set port{node} type bridge_slave isolated off")

    def cut(self, node: int) -> None:
        """Pull the cable between a node and the switch."""
        _ip(f"-n {self._switch} link set port{node} down")

    def mend(self, node: int) -> None:
        """Put it back."""
        _ip(f"-n {self._switch} link set port{node} up")

    def slow(self, node: int, mbit: float) -> None:
        """The training's link of a node carries no more, each way."""
        for shaped in (f"-n {self._node(node)} qdisc replace dev {TRAINING_INTERFACE}", f"-n {self._switch} qdisc replace dev lane{node}"):
            _run("tc", f"{shaped} root tbf rate {mbit:g}mbit burst 64kb latency 50ms")

    def fast(self, node: int) -> None:
        """As before `slow`."""
        for shaped in (f"-n {self._node(node)} qdisc delete dev {TRAINING_INTERFACE}", f"-n {self._switch} qdisc delete dev lane{node}"):
            _run("tc", f"{shaped} root")

    def lose(self, node: int, share: float) -> None:
        """Of the packets that a node sends to the training's network so many are lost, drawn by the kernel; 1: all, while those that it gets arrive."""
        interface = f"dev {TRAINING_INTERFACE}"
        _run("tc", f"-n {self._node(node)} qdisc add {interface} clsact")
        _run("tc", f"-n {self._node(node)} filter add {interface} egress bpf da bytecode", _loss_program(share))

    def lose_nothing(self, node: int) -> None:
        """As before `lose`."""
        _run("tc", f"-n {self._node(node)} qdisc delete dev {TRAINING_INTERFACE} clsact")

    def close(self) -> None:
        """Take everything away."""
        _remove(self._name)

    def _node(self, node: int) -> str:
        return f"{self._name}-node{node}"

    @property
    def _switch(self) -> str:
        return f"{self._name}-switch"


def _file_of(namespace: str) -> Path:
    return Path("/run/netns") / namespace


def _enter(file: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(file, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns failed: it needs root with CAP_SYS_ADMIN")


def remove_what_dead_runs_left() -> None:
    """Networks whose maker was killed before it could take them away."""
    for name in namespaces():
        pid, birth = name.removeprefix(f"{PREFIX}-").split("-")[:2]
        if _birth(int(pid)) != birth:
            _remove(name)


def _remove(prefix: str) -> None:
    """Namespaces of that name, or whose names begin so, and whatever still runs in them."""
    for name in [name for name in namespaces() if name == prefix or name.startswith(f"{prefix}-")]:
        try:
            for pid in _ip(f"netns pids {name}").split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _ip(f"netns delete {name}")
        except RuntimeError:
            if name in namespaces():  # else another test has taken the same dead run's away
                raise


def namespaces() -> list[str]:
    """Of the networks of all tests that run on this machine, or were killed."""
    return [line.split()[0] for line in _ip("netns list").splitlines() if line.startswith(f"{PREFIX}-")]


def _birth(pid: int) -> str:
    """When a process began, in ticks since boot; '' if there is none: a pid may be used again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _refuse_without_means() -> None:
    if shutil.which("ip") is None:
        raise RuntimeError("this test needs `ip` of Debian's package iproute2: `make services` installs it")
    if os.geteuid() != 0:
        raise RuntimeError("this test needs root, to make network namespaces and cut the links between them: run it as root (sudo make services)")


def _loss_program(share: float) -> str:
    """Classic BPF (linux/filter.h) as tc reads it: load a random number, drop the packet (TC_ACT_SHOT) where it is below that share of 2³², else pass it (TC_ACT_OK)."""
    random, pass_from = 0xFFFFF000 + 56, min(0xFFFFFFFF, round(share * 2**32))
    return f"4,32 0 0 {random},53 1 0 {pass_from},6 0 0 2,6 0 0 0" if share < 1.0 else "1,6 0 0 2"


def _ip(words: str) -> str:
    return _run("ip", words)


def _run(program: str, words: str, *more: str) -> str:
    done = subprocess.run([program, *words.split(), *more], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"`{program} {words}` failed: {done.stderr.strip()}; it needs root with CAP_NET_ADMIN and CAP_SYS_ADMIN")
    return done.stdout
