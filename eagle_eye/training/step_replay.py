"""A step that is run again: a device that computes wrongly now and then differs from itself, which needs no other replica to be seen.

Behind every so many steps the forward and backward pass of the last batch are run twice from the same state, and the bits of the two gradients are compared. It needs the script's word
(`monitor.replicas(model, replay=...)`). Each run is under a watch (replay_watch.py) that lets no collective through: in a replay, that others do not take part in, one would hang the job. Nor is anything written that could
not be put back. The first replay is one run, to see that; the next ones show whether its kernels are deterministic here; where they are not, replays are over. Then two differences in succession are told. Whatever fails ends
it for good.
"""

import contextlib
import logging
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import messages
from .checkpoint.memory_segment import free_memory
from .fault_drills import AcceleratorError
from .held_signals import HeldSignals, can_hold
from .replay_state import KeptState, refusal
from .replay_watch import ReplayRefusedError, ReplayRules, watch
from .replica_digest import SHARE, digest_of, interval

VALUE = "replay_differs"
"""Value of the step behind a replay: 0 where both gradients were the same, else how many replays in succession they were not, 2 at most."""
VARIABLE = "EAGLE_EYE_REPLAYS"
"""'0' in a worker's environment: none are made."""
LEAST = 256
"""Steps before the first one, and between two."""
LEARNED = 3
"""Replays in succession that have to agree before one that does not means anything."""
DIFFERING = 2
"""In succession: then it is told."""
SPARE_BYTES = 1 << 30
"""Of a GPU's memory, or of the host's for each worker on it, that have to be left over."""
LONGEST_REASON = 500
_log = logging.getLogger("eagle_eye.probe")


class StepReplay:
    """Of one worker. `loss_of` gives the loss of the last batch, None while there is none. All calls are from the thread of the loop."""

    def __init__(self, model: Any, loss_of: Callable[[], Any], clock_ns: Callable[[], int]) -> None:
        self._loss_of, self._clock = loss_of, clock_ns
        self._every, self._shortest_s = LEAST, math.inf
        self._tried, self._agreed, self._differing, self._again = False, 0, 0, False
        self._value: float | None = None
        self._teller: threading.Thread | None = None
        self.over = False
        """None is made any more."""
        why = refusal(model)
        self._model = weakref.ref(model) if not why else lambda: None
        if why:
            self._end(-1, why)

    def due(self, number: int) -> bool:
        """One is to be made behind the step of that number."""
        return not self.over and (self._again or (number + 1) % self._every == 0)

    def run(self, number: int) -> None:
        """Make one behind the step of that number. Raises nothing but what is meant for the script: a drill, Ctrl-C, and what the script's handlers raise of signals that have come meanwhile."""
        with HeldSignals() as signals:
            try:
                self._run(number, signals)
            except AcceleratorError:
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001 - of the script's own model: its training goes on
                self._end(number, f"{type(error).__name__}: {error}")
                _log.debug("a step was not run again", exc_info=True)
            except BaseException:
                self.over, self._again, self._loss_of = True, False, lambda: None
                raise

    def behind(self, step_s: float) -> float | None:
        """A step is over, and took so long: what the newest replay has shown, once."""
        self._shortest_s = min(self._shortest_s, step_s)
        value, self._value = self._value, None
        return value

    def join(self) -> None:
        """Wait until the newest message is out."""
        if self._teller is not None:
            self._teller.join()

    def _run(self, number: int, signals: HeldSignals) -> None:
        torch, model = sys.modules["torch"], self._model()
        if model is None or torch.is_inference_mode_enabled():
            return
        why = refusal(model) or ("" if can_hold() else "the loop is in another thread than the script's handlers of signals, which may come meanwhile")
        if why:  # it may have been wrapped since
            self._end(number, why)
            return
        if not has_room(torch, model):
            return
        _wait_for(torch, model)
        began = self._clock()
        found = replayed(torch, model, self._loss_of, 2 if self._tried else 1, signals)
        if found is None:
            return
        cost_s = (self._clock() - began) / 1e9
        self._every, self._shortest_s = interval(cost_s * (1 if self._tried else 2), self._shortest_s, SHARE, LEAST), math.inf
        if self._tried:
            self._judge(number, agree=found[0] == found[1])
        self._tried = True

    def _judge(self, number: int, *, agree: bool) -> None:
        if self._agreed < LEARNED:
            self._agreed += 1
            if not agree:
                self._end(number, "the same step gives other gradients when it is run again, already at first: its kernels are not deterministic (torch.use_deterministic_algorithms)")
            return
        self._differing = 0 if agree else self._differing + 1
        self._again = 0 < self._differing < DIFFERING
        self._value = float(min(self._differing, DIFFERING))
        if self._differing == DIFFERING:
            self._tell("replay_differs", step=number)

    def _end(self, number: int, reason: str) -> None:
        self.over, self._again, self._loss_of = True, False, lambda: None
        _log.warning("eagle-eye: steps are not run again to see whether this device computes the same twice: %s", reason)
        self._tell("replay_ended", step=number, reason=reason[:LONGEST_REASON])

    def _tell(self, kind: str, **fields: Any) -> None:
        """By a thread: what it takes is nothing that training waits for."""
        self._teller = threading.Thread(target=_told, args=(kind, fields), name="eagle-eye-replay", daemon=True)
        self._teller.start()


def _told(kind: str, fields: dict[str, Any]) -> None:
    try:
        messages.tell_launcher(kind, **fields)
    except Exception:  # noqa: BLE001 - a thread of the script's process: an exception in it would be told as the script's
        _log.debug("the launcher is not told of a replay", exc_info=True)


def replayed(torch: Any, model: Any, loss_of: Callable[[], Any], times: int, signals: HeldSignals) -> tuple[int, ...] | None:
    """The digest of the gradient of each run from the same state, which is there again afterwards; None where there is no loss. Raises what the runs raise, and ReplayRefusedError."""
    kept = KeptState(model)
    parameters = [each for each in model.parameters() if each.requires_grad]
    found: list[int] = []
    drawn: list[list[bytes]] = []
    try:
        with torch.enable_grad():
            for _ in range(times):
                copies = kept.begin()
                with watch(ReplayRules(model, copies, kept.generators)), _interruptible(signals):
                    digest = _digest(torch, loss_of, parameters)
                if kept.moved():
                    raise ReplayRefusedError("the replay gives a tensor other memory")
                drawn.append(kept.random.now())
                if drawn[-1] != drawn[0]:
                    raise ReplayRefusedError("another thread of the script draws random numbers meanwhile, which would come again")
                if digest is None:
                    return None
                found.append(digest)
    finally:
        kept.restore()
    return tuple(found)


@contextlib.contextmanager
def _interruptible(signals: HeldSignals) -> Iterator[None]:
    signals.interruptible = True
    try:
        yield
    finally:
        signals.interruptible = False


def _digest(torch: Any, loss_of: Callable[[], Any], parameters: list[Any]) -> int | None:
    """`autograd.grad` and no backward pass: no gradient is written, and no hook of DistributedDataParallel is called."""
    loss = loss_of()
    if loss is None:
        return None
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    dense = [each.contiguous() for each in gradients if each is not None and each.layout is torch.strided]
    digest, _ = digest_of([loss.detach().reshape(1), *dense])
    if digest is None or not dense:
        raise RuntimeError("none of the gradients can be read")
    return int(digest)


def has_room(torch: Any, model: Any) -> bool:
    """What a step takes at most, and one more gradient, are free on its GPU, or on its host: there for each of its workers, since all run theirs at once."""
    gradients = sum(each.numel() * each.element_size() for each in model.parameters())
    device = next((each.device for each in model.parameters() if each.is_cuda), None)
    if device is None:
        return bool(free_memory() >= (gradients + _beyond_now() + SPARE_BYTES) * _workers())
    if torch.cuda.is_current_stream_capturing():
        return False
    now, peak, reserved = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device), torch.cuda.memory_reserved(device)
    return bool(torch.cuda.mem_get_info(device)[0] + reserved - now >= peak - now + gradients + SPARE_BYTES)


def _beyond_now() -> int:
    """Bytes that this process had once, and has not now."""
    found = {line.split(":")[0]: int(line.split()[1]) << 10 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(("VmHWM:", "VmRSS:"))}
    return max(0, found.get("VmHWM", 0) - found.get("VmRSS", 0))


def _workers() -> int:
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(said)) if said.isdecimal() else 1


def _wait_for(torch: Any, model: Any) -> None:
    """What its GPU still has to do is no cost of a replay."""
    for device in {each.device for each in model.parameters() if each.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
