"""What launchers' tests of the network and of storage prove, taken together. Pure.

Who does not answer may be busy, stopped, ended or behind a firewall: only what several launchers see alike says where the fault is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from eagle_eye.event_attributes import float_attribute
from eagle_eye.tested_causes import CUT, OPEN
from eagle_eye.types import Event, Evidence

NAMES_SHOWN = 4
"""Of launchers in a line."""
LINES_SHOWN = 4
"""Of one kind."""
FEW = 4
"""One node of so many, or fewer, whose mount fails: it is theirs and not the server's."""
NETWORK, STORAGE = "network test, run by itself", "storage test, run by itself"
"""How the lines begin."""
FABRIC = "TCP between the launchers; of another fabric that the workers use it says nothing"
LOST = "lost"


@dataclass(frozen=True, slots=True)
class LauncherPaths:
    """What one launcher found of the ways to others."""

    tester: str
    outcomes: Mapping[str, str]
    """Peer → answered, refused, silent or lost."""
    round_trips_ms: Mapping[str, float]
    rates: Mapping[str, float]
    """Peer → MB/s."""
    sent_again: tuple[str, ...]
    unsure: str
    event: str

    @classmethod
    def of(cls, event: Event) -> "LauncherPaths":
        """As it came over the wire."""
        words = event.attributes
        outcomes = {peer: outcome for outcome in ("answered", "refused", "silent", LOST) for peer in words.get(outcome, "").split()}
        return cls(
            event.entity.name, outcomes, _figures(words.get("round_trip_ms", "")), _figures(words.get("mb_per_s", "")),
            tuple(_figures(words.get("sent_again", ""))), words.get("unsure", ""), event.id,
        )  # fmt: skip


def _figures(text: str) -> dict[str, float]:
    """Of `peer=number peer=number`; what is no number is left out."""
    found = {}
    for word in text.split():
        peer, _, number = word.rpartition("=")
        if peer and number.replace(".", "", 1).isdigit():
            found[peer] = float(number)
    return found


def network_evidence(results: Sequence[LauncherPaths], unheard: Sequence[str]) -> tuple[Evidence, ...]:
    """Lines, the one that says most first; () if nothing was tested. `unheard`: launchers that were asked and have told nothing."""
    paths = {(each.tester, peer): outcome for each in results if not each.unsure for peer, outcome in each.outcomes.items()}
    if not paths:
        return ()
    lost = [path for path, outcome in paths.items() if outcome == LOST and paths.get(path[::-1], LOST) == LOST]
    one_way = [path for path, outcome in paths.items() if outcome == LOST and paths.get(path[::-1], LOST) != LOST]
    first = _cut(lost, paths, {each.tester for each in results}) if lost else _open(paths, results, one_way)
    return tuple(chain(first, _hosts(paths), _one_way(one_way), _losses(results), _untold(results, unheard)))


def _cut(lost: Sequence[tuple[str, str]], paths: Mapping[tuple[str, str], str], told: set[str]) -> Iterator[Evidence]:
    """The nodes that nobody reaches while others reach one another; then pairs."""
    reach = {node for path, outcome in paths.items() if outcome != LOST for node in path}
    others: dict[str, set[str]] = {}
    for one, other in lost:
        others.setdefault(one, set()).add(other)
        others.setdefault(other, set()).add(one)
    alone = sorted(node for node, peers in others.items() if len(peers) > 1 and node not in reach and not reach.isdisjoint(peers))
    for node in alone[:LINES_SHOWN]:
        what = "its launcher runs, so its network is cut" if node in told else "its network is cut, or it is down"
        yield _line(f"{node} and {_names(others[node])} do not reach each other, while these reach others: {what}", CUT)
    told_of = set(alone)
    pairs = sorted({(min(path), max(path)) for path in lost if told_of.isdisjoint(path)})
    for one, other in pairs[:LINES_SHOWN]:
        both = one in reach and other in reach
        why = "while both reach others: the way between them is cut, or a firewall closes it" if both else "and nobody else tells which of them is cut off, is down, or is behind a firewall"
        yield _line(f"{one} and {other} do not reach each other, {why}", CUT)
    if more := len(alone[LINES_SHOWN:]) + len(pairs[LINES_SHOWN:]):
        yield _line(f"and so it is with {more} more", CUT)


def _open(paths: Mapping[tuple[str, str], str], results: Sequence[LauncherPaths], one_way: Sequence[tuple[str, str]]) -> Iterator[Evidence]:
    """Everybody reaches everybody that was asked."""
    times = {(each.tester, peer): ms for each in results if not each.unsure for peer, ms in each.round_trips_ms.items()}
    rates = {(each.tester, peer): rate for each in results if not each.unsure for peer, rate in each.rates.items()}
    slowest = max(times, key=lambda path: times[path], default=None)
    least = min(rates, key=lambda path: rates[path], default=None)
    figures = f", in {times[slowest]:.2f} ms at most ({slowest[0]} to {slowest[1]})" if slowest else ""
    figures += f", with {rates[least]:.0f} MB/s at least ({least[0]} to {least[1]})" if least else ""
    count = len(paths) - len(one_way)
    yield _line(f"the network is open on {'the one path' if count == 1 else f'all {count} paths'} tested{figures} ({FABRIC})", OPEN)


def _hosts(paths: Mapping[tuple[str, str], str]) -> Iterator[Evidence]:
    """Hosts that answer for a launcher that does not: no fault of the network."""
    for outcome, words in (
        ("refused", "its host answers, and no launcher listens there: it has ended or is being started; not the network"),
        ("silent", "its host takes connections, and the launcher does not answer: it is stopped or busy; not the network"),
    ):
        nodes = sorted({path[1] for path, found in paths.items() if found == outcome})
        yield from (_line(f"{node}: {words}") for node in nodes[:LINES_SHOWN])


def _one_way(paths: Sequence[tuple[str, str]]) -> Iterator[Evidence]:
    """The other way about they reach each other, so packets pass in both directions."""
    for one, other in sorted(paths)[:LINES_SHOWN]:
        yield _line(f"{one} does not reach {other}, which reaches {one}: something drops what goes to that port (a firewall), not the network")


def _losses(results: Sequence[LauncherPaths]) -> Iterator[Evidence]:
    again = sorted((each.tester, peer) for each in results if not each.unsure for peer in each.sent_again)
    for one, other in again[:LINES_SHOWN]:
        yield _line(f"a connection from {one} to {other} needed a second packet: some are lost on the way")


def _untold(results: Sequence[LauncherPaths], unheard: Sequence[str]) -> Iterator[Evidence]:
    for each in [result for result in results if result.unsure][:LINES_SHOWN]:
        yield _line(f"what {each.tester} found is not counted: {each.unsure}")
    if unheard:
        yield _line(f"{_names(unheard)} told no result")


def _line(text: str, status: str = "") -> Evidence:
    return Evidence(text=f"{NETWORK}: {text}", status=status)


def _names(nodes: Sequence[str] | set[str]) -> str:
    shown = sorted(nodes)
    more = f" and {len(shown) - NAMES_SHOWN} more" if len(shown) > NAMES_SHOWN else ""
    return ", ".join(shown[:NAMES_SHOWN]) + more


def storage_evidence(results: Sequence[Event]) -> tuple[Evidence, ...]:
    """A line for each mount, those that fail first."""
    by_mount: dict[str, list[Event]] = {}
    for each in results:
        by_mount.setdefault(each.attributes.get("mount", ""), []).append(each)
    lines = [_of_mount(mount, told) for mount, told in sorted(by_mount.items())]
    return tuple(sorted(lines, key=lambda line: line.status != CUT)[: 2 * LINES_SHOWN])


def _of_mount(mount: str, told: Sequence[Event]) -> Evidence:
    failed, took = _outcomes(told)
    longest = max(took, key=lambda node: took[node], default="")
    works = f"a stat and a read take {1e3 * took[longest]:.1f} ms at most ({longest}) on {_names(list(took))}" if took else ""
    if not failed:
        return Evidence(text=f"{STORAGE}: {mount} answers: {works}", status=OPEN)
    errors, count = _errors(failed), len(failed) + len(took)
    if not took:
        where = f"on {errors}"
    elif len(failed) == 1 or FEW * len(failed) <= count:
        where = f"on {errors} alone, while {works}: {'that node' if len(failed) == 1 else 'those nodes, or what they share'}, not the server"
    else:
        where = f"on {len(failed)} of {count} nodes, {errors}: the server, or what lies between; {_names(list(took))} answer{'s' if len(took) == 1 else ''}, perhaps from the cache: {works}"
    return Evidence(text=f"{STORAGE}: {mount} fails {where}", status=CUT)


def _outcomes(told: Sequence[Event]) -> tuple[dict[str, str], dict[str, float]]:
    """Node → its error, and node → seconds of those that have none."""
    failed, took = {}, {}
    for each in told:
        node, error = each.attributes.get("node", ""), each.attributes.get("error", "")
        if error:
            failed[node] = error
        else:
            took[node] = float_attribute(each, "stat_s") + float_attribute(each, "read_s")
    return failed, {node: seconds for node, seconds in took.items() if node not in failed}


def _errors(failed: Mapping[str, str]) -> str:
    """The nodes of each, the error of most of them first."""
    nodes: dict[str, list[str]] = {}
    for node, error in failed.items():
        nodes.setdefault(error, []).append(node)
    ordered = sorted(nodes, key=lambda error: (-len(nodes[error]), error))
    more = f", and {len(ordered) - LINES_SHOWN} other errors" if len(ordered) > LINES_SHOWN else ""
    return ", ".join(f"{_names(nodes[error])} ({error})" for error in ordered[:LINES_SHOWN]) + more
