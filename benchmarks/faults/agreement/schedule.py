"""What happens to a job: drawn from a seed."""

import random
from dataclasses import dataclass

TROUBLE_S, CALM_S = 40.0, 60.0
"""Faults begin and end within the first; then the job has so long to train again."""
FIRST_S = 6.0
"""Everything has started by then."""
OWN_KINDS = ("cut", "one way", "loss", "delay", "pause", "server crash", "server pause", "disk full")
"""Only Eagle Eye's own channels and processes are hurt: training must not notice."""
JOB_KINDS = ("split", "machine", "worker", "launcher crash", "torn votes", "node pause", "kernel")
"""The job itself is hurt."""
SPLITTING = 7
"""Seeds that end in this digit are aimed at what rarely comes by chance: one job in two parts that both could go on."""


@dataclass(frozen=True, slots=True)
class Fault:
    """From `begin` on for `seconds`."""

    kind: str
    begin: float
    seconds: float
    nodes: tuple[str, ...]
    """That it hits; of a partition: one side."""

    def __str__(self) -> str:
        return f"{self.begin:6.2f} s, {self.seconds:5.2f} s long: {self.kind} of {', '.join(self.nodes) or 'all'}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """One job and its faults."""

    seed: int
    slots: tuple[int, ...]
    """Workers of each node; 0 nodes beyond `max_nodes` are spares."""
    min_nodes: int
    max_nodes: int
    server: bool
    faults: tuple[Fault, ...]
    pauses: tuple[tuple[float, float], ...]
    """(begin, seconds) in which rank 0 evaluates and all others wait for it."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(len(self.slots)))

    @property
    def harmless(self) -> bool:
        """No fault of it hurts training."""
        return all(fault.kind in OWN_KINDS for fault in self.faults)

    def __str__(self) -> str:
        head = f"seed {self.seed}: {len(self.slots)} launchers, {self.min_nodes} to {self.max_nodes} nodes train, {'a' if self.server else 'no'} server"
        pauses = [f"{begin:6.2f} s, {seconds:5.2f} s long: rank 0 evaluates" for begin, seconds in self.pauses]
        return "\n  ".join([head, *map(str, sorted(self.faults, key=lambda fault: fault.begin)), *pauses])


def drawn(seed: int) -> Schedule:
    """The schedule of a seed; a third of them hurt only Eagle Eye itself."""
    chance = random.Random(seed)
    if seed % 10 == SPLITTING:
        return _outvoted(seed, chance) if seed // 10 % 2 else _splitting(seed, chance)
    count = chance.choice((1, 2, 2, 3, 3, 3, 4, 5))
    most = count if chance.random() < 0.7 else chance.randint(1, count)
    nodes = tuple(f"n{number}" for number in range(count))
    harmless = chance.random() < 0.35
    kinds = OWN_KINDS if harmless else (*OWN_KINDS, *JOB_KINDS)
    faults = tuple(_fault(chance.choice(kinds), nodes, chance) for _ in range(chance.randint(1, 5)))
    pauses = ((chance.uniform(FIRST_S, TROUBLE_S / 2), chance.uniform(2.0, 15.0)),) if chance.random() < 0.3 else ()
    return Schedule(
        seed=seed, slots=(1,) * count, min_nodes=chance.randint(1, most) if most > 1 else 1, max_nodes=most, server=chance.random() < 0.6,
        faults=faults, pauses=pauses,
    )  # fmt: skip


def _fault(kind: str, nodes: tuple[str, ...], chance: random.Random) -> Fault:
    begin = chance.uniform(FIRST_S, TROUBLE_S - 8.0)
    longest = TROUBLE_S - begin
    seconds = min(longest, chance.choice((0.3, 1.0, 2.5, 5.0, 12.0, 30.0)) * chance.uniform(0.7, 1.3))
    everybody = (*nodes, "server")
    if kind in ("cut", "split"):
        return Fault(kind, begin, seconds, tuple(chance.sample(everybody, chance.randint(1, len(everybody) - 1))))
    if kind == "one way":
        return Fault(kind, begin, seconds, tuple(chance.sample(everybody, 2)))
    if kind in ("loss", "delay", "server crash", "server pause"):
        return Fault(kind, begin, seconds, ())
    return Fault(kind, begin, seconds, tuple(chance.sample(nodes, chance.randint(1, max(1, len(nodes) - 1)))))


def _splitting(seed: int, chance: random.Random) -> Schedule:
    """n1 forms an epoch without n0 and is away before n0 forms one of its own: n2 is asked by both.

    n1 leads since n0 was started again, and n0 is where a launcher looks that remembers nothing. Either n2 has lost its votes between, or n1
    thaws with an answer of n2 that it has not read.
    """
    first = chance.uniform(13.0, 15.0)
    begun = first + chance.uniform(5.5, 7.5)
    away = begun + chance.uniform(0.2, 3.0)
    faults = [Fault("launcher crash", FIRST_S, 2.0, ("n0",)), Fault("split", first, away - first, ("n0",))]
    if forgets := chance.random() < 0.5:
        faults += [Fault("torn votes", away - 0.1, chance.uniform(0.5, 3.0), ("n2",)), Fault("split", away + 0.01, TROUBLE_S - 2.0 - away, ("n1",))]
    else:
        faults += [Fault("delay", first + 5.0, begun + 0.5 - first - 5.0, ()), Fault("node pause", begun, chance.uniform(4.0, 7.5), ("n1",))]
    return Schedule(seed=seed, slots=(1, 1, 1), min_nodes=1, max_nodes=3, server=not forgets, faults=tuple(faults), pauses=())


def _outvoted(seed: int, chance: random.Random) -> Schedule:
    """Spares alone are with the server, and they are more than the one that trains."""
    faults = (Fault("worker", FIRST_S, 1.0, ("n0",)), Fault("split", chance.uniform(8.0, 14.0), chance.uniform(10.0, 25.0), ("n0",)))
    return Schedule(seed=seed, slots=(1, 1, 1), min_nodes=1, max_nodes=1, server=True, faults=faults, pauses=())


def family(fault: Fault) -> str:
    """Faults of one family end together: what is cut by two of them is whole only when both are over."""
    return "cut" if fault.kind in ("cut", "split", "one way") else fault.kind
