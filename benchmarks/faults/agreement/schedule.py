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
AIMED = 7
"""Seeds that end in this digit are aimed at what rarely comes by chance: `_AIMS`, in turn."""


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
class Ambush:
    """Faults that wait for a moment which no drawn time hits: a launcher has written down its vote for an epoch."""

    node: str
    epoch: int
    faults: tuple[Fault, ...]
    """They begin so long after the vote."""

    def __str__(self) -> str:
        return "\n  ".join([f"when {self.node} has voted for epoch {self.epoch}:", *(f"+{fault}" for fault in self.faults)])


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
    ambushes: tuple[Ambush, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(len(self.slots)))

    @property
    def harmless(self) -> bool:
        """No fault of it hurts training."""
        return all(fault.kind in OWN_KINDS for fault in self.faults) and not self.ambushes

    def __str__(self) -> str:
        head = f"seed {self.seed}: {len(self.slots)} launchers, {self.min_nodes} to {self.max_nodes} nodes train, {'a' if self.server else 'no'} server"
        pauses = [f"{begin:6.2f} s, {seconds:5.2f} s long: rank 0 evaluates" for begin, seconds in self.pauses]
        return "\n  ".join([head, *map(str, sorted(self.faults, key=lambda fault: fault.begin)), *pauses, *map(str, self.ambushes)])


def drawn(seed: int) -> Schedule:
    """The schedule of a seed; a third of them hurt only Eagle Eye itself."""
    chance = random.Random(seed)
    if seed % 10 == AIMED:
        return _AIMS[seed // 10 % len(_AIMS)](seed, chance)
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


def _both_sides(seed: int, chance: random.Random) -> Schedule:
    """n1 forms an epoch without n0, n2 votes for it, and never hears that it is valid: n0 asks n2 for one after the same last epoch.

    n1 can go on alone: by the server's grant, or with n3 where there are five.
    """
    count = chance.choice((3, 3, 5))
    first, rest = chance.uniform(8.0, 14.0), TROUBLE_S - 2.0
    server = chance.random() < 0.5
    n0, n1 = (("n0", "n4"), ("n1", "n3")) if count == 5 else (("n0",), ("n1",))
    parted = (*n1, "server") if chance.random() < 0.7 else n1
    ambush = Ambush("n2", 2, (Fault("one way", 0.0, rest, ("n1", "n2")), Fault("parted", chance.uniform(0.2, 1.5), rest, parted)))
    return Schedule(
        seed=seed, slots=(1,) * count, min_nodes=1, max_nodes=count, server=server, faults=(Fault("split", first, rest - first, n0),), pauses=(),
        ambushes=(ambush,),
    )  # fmt: skip


def _gone_on(seed: int, chance: random.Random) -> Schedule:
    """Three of five go on; then one of them is left alone, and finds those that know of the first epoch only, and the server."""
    first, rest = chance.uniform(8.0, 12.0), TROUBLE_S - 2.0
    alone = chance.uniform(0.5, 3.0)
    ambush = Ambush("n3", 2, (Fault("split", alone, rest, ("n3",)), Fault("parted", alone + chance.uniform(4.0, 8.0), rest, ("n1", "n2"))))
    return Schedule(
        seed=seed, slots=(1,) * 5, min_nodes=1, max_nodes=5, server=True, faults=(Fault("split", first, rest - first, ("n0", "n4", "server")),), pauses=(),
        ambushes=(ambush,),
    )  # fmt: skip


def _no_successor(seed: int, chance: random.Random) -> Schedule:
    """The coordinator is lost, and then, or with it, whoever is next: the rest goes on if it is a majority, and else touches no worker."""
    count = chance.choice((3, 4, 5))
    first = chance.uniform(8.0, 12.0)
    kind = chance.choice(("launcher crash", "machine", "split"))
    return Schedule(
        seed=seed, slots=(1,) * count, min_nodes=1, max_nodes=count, server=False,
        faults=(Fault(kind, first, 26.0, ("n0", "n1")),) if chance.random() < 0.5 else (
            Fault(kind, first, 26.0, ("n0",)), Fault("launcher crash", first + chance.uniform(0.5, 6.0), 20.0, ("n1",)),
        ), pauses=(),
    )  # fmt: skip


def _two_halves(seed: int, chance: random.Random) -> Schedule:
    """The server lets one half go on, hears nothing of it any more, and is asked by the other half."""
    first, rest = chance.uniform(8.0, 12.0), TROUBLE_S - 2.0
    ambush = Ambush("n0", 2, (
        Fault("parted", 0.0, rest, ("n2", "n3", "server")), Fault("launcher crash", chance.uniform(3.0, 9.0), 2.0, (chance.choice(("n2", "n3")),)),
    ))  # fmt: skip
    return Schedule(
        seed=seed, slots=(1,) * 4, min_nodes=1, max_nodes=4, server=True, faults=(Fault("split", first, rest - first, ("n2", "n3")),), pauses=(),
        ambushes=(ambush,),
    )  # fmt: skip


_AIMS = (_splitting, _outvoted, _both_sides, _no_successor, _gone_on, _two_halves)


def family(fault: Fault) -> str:
    """Faults of one family end together: what is cut by two of them is whole only when both are over."""
    return "cut" if fault.kind in ("cut", "split", "one way", "parted") else fault.kind
