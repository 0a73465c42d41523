"""Which workers hold the state of an elastic job: so that the job can report what is lost with the last of them."""

from collections.abc import Iterable

from .coordinator_effects import Effect, EmitEvent


class StateHolders:
    """Workers with whole state, as far as the coordinator knows."""

    def __init__(self) -> None:
        self._holding: set[str] = set()
        self._last: list[str] = []
        """Those that were lost since anybody else is known to have held it."""
        self._step = 0
        """The first step still to do that the state was for, at least."""

    def clear(self) -> None:
        """The workers are ended on purpose."""
        self._holding.clear()
        self._last.clear()

    def hold(self, workers: Iterable[str], step: int) -> None:
        """These, and nobody else, have said or shown that they hold it."""
        self._holding, self._step = set(workers), step
        self._last.clear()

    def add(self, worker: str) -> None:
        """It has committed a step: it holds the state as the others do."""
        self._holding.add(worker)

    def lost(self, worker: str, step: int = -1) -> None:
        """`step`: that it was at, if that is known."""
        if worker in self._holding:
            self._holding.discard(worker)
            self._last.append(worker)
            self._step = max(self._step, step)

    @property
    def words(self) -> str:
        """Who held it last, of which step; '' while somebody does."""
        if self._holding or not self._last:
            return ""
        return f"{', '.join(sorted(self._last))} held it last, of step {self._step}"

    def fell_back(self, worker: str, loaded: int, layers: int) -> list[Effect]:
        """A worker has loaded the newest checkpoint: it is for step `loaded`, 0 where there was none."""
        words, steps, last = self.words, max(0, self._step - loaded), ",".join(sorted(self._last))
        attributes = {
            "layers": ",".join(map(str, range(layers))), "holders": last, "step": str(self._step), "loaded": str(loaded), "lost_steps": str(steps),
        }  # fmt: skip
        self.hold((worker,), loaded)
        if not words:
            return []
        which = "layer 0" if layers == 1 else f"layers 0 to {layers - 1}"
        source = f"the newest checkpoint, of step {loaded}, is used" if loaded else "there is no checkpoint, the job begins anew"
        message = f"no living worker holds the state of {which} any more: {words}; {source}: {steps} step(s) are lost and done again"
        return [EmitEvent(name="state.lost", message=message, attributes=attributes)]


class LastCheckpoint:
    """Of a job that has to stop, or is at its end: one worker writes it for all."""

    def __init__(self) -> None:
        self._why = self._path = ""

    def heard(self, worker: str, step: int, why: str, path: str) -> list[Effect]:
        """How it stands: what keeps it from being written, where it lies."""
        news = bool(why) and not self._why
        self._why, self._path = why, path
        attributes = {"worker": worker, "step": str(step), "reason": why}
        return [EmitEvent(name="checkpoint.refused", message=f"{worker}: {why}", attributes=attributes)] if news else []

    @property
    def words(self) -> str:
        """For the last line of a job that had to stop."""
        if self._path:
            return f"; its state was saved to {self._path}"
        return f"; its last checkpoint was never written: {self._why}" if self._why else ""
