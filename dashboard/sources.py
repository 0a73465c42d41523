"""What the pages read from: the ledger, the history, the control channel, the server's own figures, and the time.

One `Sources` a process: it holds connections and answers that several viewers ask for at the same moment. It opens
things when they are first asked for and again after a failure, so that a page mends itself once the server is there.
"""

import os
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from eagle_eye import config as configuration
from eagle_eye.access.addresses import addresses_of, is_loopback
from eagle_eye.access.credentials import Credentials
from eagle_eye.access.tokens import Tokens
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.config import Config
from eagle_eye.errors import ConfigError, HistoryError, LedgerError, LedgerVersion
from eagle_eye.history.factory import open_history
from eagle_eye.history.queries import History
from eagle_eye.ledger import Ledger
from eagle_eye.ledger.factory import open_ledger
from eagle_eye.rpc.control_messages import Body
from eagle_eye.rpc.operator_client import OperatorMessage, call

from .cache import FileResultCache, ResultCache
from .errors import BrokenHistory, NewerLedger, NoHistory, NoLedger, NothingToDecide, OlderLedger

VARIABLE = "EAGLE_EYE_DASHBOARD"
"""JSON of the whole configuration, as the process that started this one had loaded it."""
RECORDED = "recorded.json"
"""In the state directory of a recorded run."""
REFRESH_S = 2.0
"""An answer about now is so old at most."""
STEP_S = 5.0
"""Spans end at multiples of it, so that viewers ask for the same ones and are given the same answer."""
SPAN_S = 10.0
"""An answer about a span that ends at a given time is kept so long: nobody asks for it later."""
SCRAPE_S = 2.0
Answer = TypeVar("Answer")


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a recorded run."""

    began: float
    ended: float
    command: str
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingClock:
    """The time at which a recorded run ended: its last minutes are `the last minutes`."""

    time: float

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return SystemClock().monotonic()

    def sleep(self, seconds: float) -> None:
        SystemClock().sleep(seconds)


class Sources:
    """Everything that a page may ask. Thread-safe."""

    def __init__(self, config: Config, clock: Clock | None = None) -> None:
        """Raises ConfigError for a history or tokens that cannot be used."""
        self.config = config
        self.recorded = _recorded(config.state / RECORDED)
        self.clock: Clock = clock or (StandingClock(time=self.recorded.ended) if self.recorded else SystemClock())
        self.tokens = Tokens.of(config, SystemClock())
        self._lock = threading.Lock()
        self._ledger: Ledger | None = None
        self._history = open_history(config)
        self._file_results = FileResultCache(self._history)
        self._cache = ResultCache(SystemClock())

    @classmethod
    def from_environment(cls) -> Self:
        """Of the configuration that `eagle-eye dashboard` hands over, else of the one that is found. Raises ConfigError."""
        given = os.environ.get(VARIABLE, "")
        try:
            return cls(msgspec.json.decode(given, type=Config) if given else configuration.load())
        except msgspec.DecodeError as error:
            raise ConfigError(f"{VARIABLE} holds no configuration ({error}): start the dashboard with `eagle-eye dashboard`") from error

    def close(self) -> None:
        """Release connections."""
        with self._lock:
            if self._ledger is not None:
                self._ledger.close()
                self._ledger = None
        self._history.close()

    def now(self) -> float:
        """Seconds since 1970, in steps of STEP_S, so that viewers ask for the same spans."""
        return self.clock.now() // STEP_S * STEP_S if self.recorded is None else self.clock.now()

    # --- ledger ----------------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """For reading only. Raises NoLedger, NewerLedger, OlderLedger; its methods LedgerError."""
        with self._lock:
            if self._ledger is None:
                self._ledger = _opened(self.config)
            return self._ledger

    # --- history ---------------------------------------------------------------------------------------------------

    @property
    def history(self) -> History:
        """Raises NoHistory where it is switched off; its methods HistoryError."""
        if not self.config.history.enabled:
            raise NoHistory("the configuration keeps no history: set `history.enabled = true` and start the server again")
        return self._history

    def metrics(self, table: str = "") -> dict[str, tuple[str, ...]]:
        """Table → its metrics, of a kind or of all; empty before the first file. Raises NoHistory, BrokenHistory."""
        known: dict[str, tuple[str, ...]] = self.remembered(("metrics",), self._metrics, seconds=30.0)
        return {name: names for name, names in known.items() if table in ("", name, name.partition("/")[0])}

    def ask(self, table: str, question: str, given: Mapping[str, Any] | None = None, *, needs: Sequence[str] = (), since: float, until: float) -> dict[str, Any] | None:
        """Column → numpy array, the answer of DuckDB to SQL over {rows} of a table; None if there is nothing of that time.

        needs: metrics of the question; those that the rows do not have are null. Raises NoHistory, BrokenHistory.
        """
        with _readable():
            found = self.history.ask(table, question.replace("{rows}", _with(needs)), dict(given or {}), since=since, until=until)
        return _columns(found)

    def ask_summed(
        self, table: str, of_a_file: str, question: str, given: Mapping[str, Any], *, needs: Sequence[str] = (), since: float, until: float
    ) -> dict[str, Any] | None:
        """As `ask`, in two steps: SQL over the {rows} of one file, which is asked once a file, and SQL over the {rows} that the files of that time answered."""
        history = self.history
        with _readable():
            rows = self._file_results.of(table, of_a_file.replace("{rows}", _with(needs)), since=since, until=until)
            return None if rows is None else _columns(history.ask_rows(rows, question, dict(given)))

    # --- the server ------------------------------------------------------------------------------------------------

    def order(self, what: str, message: OperatorMessage | None, token: str = "") -> Body:
        """The leader's answer to an operator's command. Raises NothingToDecide, AccessDenied, ControlError, ConfigError."""
        if self.recorded is not None:
            raise NothingToDecide("it accepts no commands. Start `make demo` for a live run.")
        server = self.config.server
        credentials = Credentials.of(self.config.access)
        if token and not (credentials or server.insecure or all(map(is_loopback, addresses_of(server.known_at)))):
            raise ConfigError(f"your token is not sent to {server.known_at} without TLS: set access.ca_file, access.certificate_file and access.key_file")
        return call(server.known_at, what, message, credentials=credentials, token=token)

    def figures(self, token: str = "") -> dict[str, dict[tuple[tuple[str, str], ...], float]] | None:
        """What the server's /metrics shows: name → labels → value; None if it does not answer."""
        if self.recorded is not None or not self.config.server.http:
            return None
        return self.remembered(("figures", token), lambda: _scraped(self.config.server.http, token), seconds=REFRESH_S)

    # --- answers ---------------------------------------------------------------------------------------------------

    def remembered(self, key: tuple[Any, ...], make: Callable[[], Answer], *, seconds: float = REFRESH_S) -> Answer:
        """What was made for that key within the last `seconds`, else made now: once, however many ask at the same time."""
        return self._cache.get(key, make, seconds)

    def ahead(self, *questions: Callable[[], object]) -> None:
        """Start a query whose result will be needed in a moment and is cached: the caller that needs it waits for that result, and gets its error."""
        for question in questions:
            threading.Thread(target=_tried, args=(question,), name="ahead", daemon=True).start()

    def _metrics(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        with _readable():
            for metric in self.history.metrics():
                found.setdefault(metric.table, []).append(metric.name)
        return {name: tuple(names) for name, names in found.items()}


def _tried(question: Callable[[], object]) -> None:
    with suppress(Exception):  # boundary: the caller that needs it raises it again and shows it
        question()


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except HistoryError as error:
        raise BrokenHistory(f"{error}. Look at the disk, and at `history.location` in the configuration.") from error


def _with(needs: Sequence[str]) -> str:
    """The rows of a question, with these columns in any case."""
    nulls = ", ".join(f"NULL::FLOAT AS {quoted(name)}" for name in needs)
    return f"(SELECT {nulls} WHERE false UNION ALL BY NAME SELECT * FROM {{rows}})" if needs else "{rows}"  # noqa: S608 -- names of our own


def _columns(found: Any | None) -> dict[str, Any] | None:
    """Of an Arrow table, as numpy arrays; None without a row."""
    return {name: found[name].to_numpy() for name in found.column_names} if found is not None and found.num_rows else None


def _opened(config: Config) -> Ledger:
    try:
        return open_ledger(config, read_only=True)
    except LedgerVersion as error:
        raise (NewerLedger if error.newer else OlderLedger)(f"{error}.") from error
    except LedgerError as error:
        raise NoLedger(f"{error}.") from error


def quoted(name: str) -> str:
    """A metric as SQL names a column, whatever is in it."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _recorded(path: Path) -> Recorded | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Recorded)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} does not describe a recorded run ({error}): remove it, or record the run again") from error


def _scraped(address: str, token: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]] | None:
    from prometheus_client.parser import text_string_to_metric_families

    request = urllib.request.Request(f"http://{address}/metrics", headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with _opener().open(request, timeout=SCRAPE_S) as answer:
            text = answer.read().decode()
    except (OSError, HTTPException, UnicodeDecodeError):  # nobody answers, or another program does
        return None
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def _opener() -> urllib.request.OpenerDirector:
    """No proxy between two processes of ours."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))
