"""Every error that Eagle Eye raises on purpose. A message names the input and the remedy.

    EagleEyeError
    ├── ConfigError            the configuration, or a command line, is not usable
    ├── DataSetError           a data set is missing, torn or of another form
    ├── PluginError            a detector, collector, guard or action cannot be found, built or trusted
    ├── WireError              bytes that are no record of ours
    │   ├── NewerVersion       a record of a newer version than this program reads
    │   └── RecordRefused      a record that its writer may not write, or whose signature is wrong
    ├── StreamError            the stream refused or lost a request
    │   ├── StreamUnavailable         it does not answer: try again later, spool meanwhile
    │   ├── StreamFull         no room left under it
    │   └── StreamRefused      a record that the stream can never take: trying again is of no use
    ├── RingError              a ring that cannot be read (torn, foreign, of another version)
    ├── LedgerError            the ledger cannot be read or written
    │   ├── LedgerUnavailable         its database has gone away and kept nothing of the call: try again later
    │   ├── LedgerRefused      a row that it can never take: trying again is of no use
    │   └── LedgerVersion      its tables are of another version than this program's
    ├── HistoryError           the history cannot be read or written
    ├── ControlError           the control channel refused a request
    │   ├── AccessDenied       the caller's role does not allow this
    │   │   └── NotAuthenticated   the request has no valid token: none, a wrong or an expired one
    │   └── Stale              an older term, epoch or plan than the one already seen
    │       └── CalledOff      a plan whose reason is gone: nothing more of it is carried out
    ├── LaunchError            a training command cannot be started
    ├── ElasticError           an elastic worker cannot go on as it is
    │   ├── Fenced             a newer epoch is being formed: stop what belongs to the older one
    │   ├── Broken             an operation between workers failed: a peer is gone, or the group was cut
    │   │   └── StateCorrupted state that arrived from another worker is not what that one sent
    │   ├── Halted             the job is to stop, with a checkpoint
    │   ├── FencedOut          this worker is no longer part of its job
    │   ├── Ended              the job ended
    │   └── LauncherLost       the launcher is gone, nothing more will be heard
    ├── TemporaryError         an action did not work yet; try again after `delay` seconds
    └── PermanentError         an action cannot work; the next stronger one may
"""


UNREADABLE = (ValueError, RecursionError)
"""What decoding raises for bytes that hold nothing of ours: the errors of msgspec and json, and UnicodeDecodeError, are ValueErrors."""


class EagleEyeError(Exception):
    """Root of the tree: catch this to catch everything that we raise on purpose."""


class ConfigError(EagleEyeError):
    """The configuration or a command line is not usable."""


class DataSetError(EagleEyeError):
    """A data set to be evaluated on is missing, torn or of another form; the message names the file and the remedy."""


class PluginError(EagleEyeError):
    """A plugin cannot be found, built or trusted."""


class WireError(EagleEyeError):
    """Bytes that are no record of ours."""


class NewerVersion(WireError):
    """A record of a newer schema version; it goes to the dead-letter topic and is counted."""


class RecordRefused(WireError):
    """A record that its writer may not write, or whose signature is wrong."""


class StreamError(EagleEyeError):
    """The stream refused or lost a request."""


class StreamUnavailable(StreamError):
    """The stream does not answer; the caller spools and tries again."""


class StreamFull(StreamError):
    """No room is left under the stream."""


class StreamRefused(StreamError):
    """A record that the stream can never take (its topic's name, its size)."""


class RingError(EagleEyeError):
    """A ring cannot be read."""


class LedgerError(EagleEyeError):
    """The ledger cannot be read or written."""


class LedgerUnavailable(LedgerError):
    """The database has gone away and may come back; nothing of the call was kept."""


class LedgerRefused(LedgerError):
    """A row that the ledger can never take (a value that its database has no room for, a state that cannot follow)."""


class LedgerVersion(LedgerError):
    """Its tables are of another version than this program's; `newer` is true for a newer one."""

    def __init__(self, message: str, *, newer: bool) -> None:
        super().__init__(message)
        self.newer = newer


class HistoryError(EagleEyeError):
    """The history cannot be read or written."""


class ControlError(EagleEyeError):
    """The control channel refused a request."""


class AccessDenied(ControlError):
    """The caller's role does not allow this."""


class NotAuthenticated(AccessDenied):
    """The request has no valid token: none, a wrong or an expired one."""


class Stale(ControlError):
    """A command of an older leader term, job epoch or plan than the highest one seen."""


class CalledOff(Stale):
    """The reason for a plan is gone (its incident has ended, its culprits are others, it has expired): nothing more of it is sent."""


class LaunchError(EagleEyeError):
    """A training command cannot be started."""


class ElasticError(EagleEyeError):
    """An elastic worker cannot go on in its epoch, or in its job."""


class Fenced(ElasticError):
    """Epoch `epoch` is being formed: the work of an older epoch stops here."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"epoch {epoch} is being formed")
        self.epoch = epoch


class Broken(ElasticError):
    """An operation between workers failed: a peer is gone, or the process group was aborted. The content of its output is undefined."""


class StateCorrupted(Broken):
    """State from rank `sender` arrived changed in `layers`: the state of this worker is incomplete, it is fresh again."""

    def __init__(self, message: str, *, sender: int, layers: tuple[int, ...]) -> None:
        super().__init__(message)
        self.sender = sender
        self.layers = layers


class Halted(ElasticError):
    """The launcher stops the job for `reason`: save a checkpoint if the state is complete, then exit with `code`."""

    def __init__(self, reason: str, code: int, saves: bool = True) -> None:
        """`saves`: this worker is the one that saves the checkpoint, if its state is complete."""
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.saves = saves


class FencedOut(ElasticError):
    """This worker is no longer part of its job and cannot commit any more. It may join again, fresh."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Ended(ElasticError):
    """The job ended, or ended while this worker was joining it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LauncherLost(ElasticError):
    """The launcher has closed the session; this worker will receive no further epoch."""


class TemporaryError(EagleEyeError):
    """An action did not work yet; `delay` is the number of seconds to wait before the next try."""

    def __init__(self, message: str, delay: float = 1.0) -> None:
        super().__init__(message)
        self.delay = delay


class PermanentError(EagleEyeError):
    """An action cannot work here; escalate."""
