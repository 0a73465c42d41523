"""Errors that keep a page, or a part of it, from being shown. Each message names the next step."""

from eagle_eye.errors import EagleEyeError


class NotShown(EagleEyeError):
    """A page, or a part of it, cannot be shown. `title` is one line, the message has the details."""

    title = "This cannot be shown"


class NoLedger(NotShown):
    """There is no ledger, or it does not answer."""

    title = "No ledger yet"


class NewerLedger(NotShown):
    """The ledger was written by a newer version of Eagle Eye."""

    title = "The ledger is of a newer version"


class OlderLedger(NotShown):
    """The ledger was written by an older version of Eagle Eye, and no server has brought it up to date."""

    title = "The ledger is of an older version"


class NoHistory(NotShown):
    """No number has been written yet, or none of that kind."""

    title = "No history yet"


class BrokenHistory(NotShown):
    """The history cannot be read."""

    title = "The history cannot be read"


class NothingFound(NotShown):
    """Nothing of that name is there."""

    title = "There is no such thing"


class NothingToDecide(NotShown):
    """A recorded run accepts no commands."""

    title = "This is a recorded run"
