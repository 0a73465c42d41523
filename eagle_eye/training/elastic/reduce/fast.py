"""`FastReduction`: all-reduces of copies, segment by segment, while the last backward still runs.

Segments go from the last to the first, as a backward fills them, and in the same order on every worker. One is sent
once all parameters in it have their gradients; what is not sent when the backward ends is sent then.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from torch import Tensor

from .accumulator import Accumulator

if TYPE_CHECKING:
    from eagle_eye.training.elastic.process_group.process_group import ProcessGroup, Work


class FastReduction:
    """Equal to the sum in any other order within float tolerance."""

    def __init__(self) -> None:
        self._in_flight: _InFlight | None = None

    @contextmanager
    def overlap(self, group: "ProcessGroup", gradients: Accumulator) -> Iterator[None]:
        """Context of begin, run and finish of the worker's last micro-batch: reduces what its backward has finished.

        Errors of the group are not raised here, but by `reduce`.
        """
        flight = _InFlight(group, gradients)
        with ExitStack() as hooks:
            for number, parameter in enumerate(gradients.parameters):
                hooks.enter_context(_hook(parameter, flight.on_gradient(number)))
            yield
        self._in_flight = flight

    def reduce(
        self, group: "ProcessGroup", gradients: Accumulator, current: Sequence[Sequence[int]], reduced: list[Tensor | None]
    ) -> None:
        """Fill `reduced` with the segments of the mean over all micro-batches, each once it is whole.

        `current`: the micro-batches that each rank contributes. The running sum is only read. Raises Broken after it
        has aborted the group.
        """
        flight, self._in_flight = self._in_flight, None
        gradients.require(current[group.rank])
        if flight is None or flight.group is not group:
            flight = _InFlight(group, gradients)
        reduced[:] = [None] * len(gradients.segments)
        try:
            for index in flight.complete():
                reduced[index] = flight.output[gradients.segments[index]]
        except BaseException:
            group.abort()
            raise
        gradients.close_output()


class _InFlight:
    """The all-reduces of one step."""

    def __init__(self, group: "ProcessGroup", gradients: Accumulator) -> None:
        self.group, self._gradients = group, gradients
        self.output = gradients.open_output()
        self._works: list[tuple[int, Work]] = []
        self._next = len(gradients.segments) - 1
        self._missing = [_parameters_in(gradients, segment) for segment in gradients.segments]
        self._error: BaseException | None = None

    def on_gradient(self, number: int) -> Callable[[Tensor], None]:
        """What to call when autograd has added a parameter's gradient. It never raises."""
        segments = [index for index, missing in enumerate(self._missing) if number in missing]

        def arrived(_: Tensor) -> None:
            try:
                self._arrived(number, segments)
            except BaseException as error:  # noqa: BLE001 - autograd must not be interrupted; `complete` raises it
                self._error = error

        return arrived

    def complete(self) -> Iterator[int]:
        """Send what was not sent; the numbers of the segments, each when it is whole."""
        while self._error is None and self._next >= 0:
            self._send()
        if self._error is not None:
            raise self._error
        for index, work in self._works:
            work.wait()
            yield index

    def _arrived(self, number: int, segments: Sequence[int]) -> None:
        for index in segments:
            if number not in self._missing[index]:
                raise RuntimeError(
                    "a parameter got its gradient twice in one backward, the second time perhaps too late to be reduced: "
                    "use checkpoint(..., use_reentrant=False), or reduction='exact'"
                )
            self._missing[index].discard(number)
        while self._error is None and self._is_ready(self._next):
            self._send()

    def _is_ready(self, index: int) -> bool:
        """Loss and tokens of the micro-batch, in the head of the vector, are known only after its backward."""
        gradients = self._gradients
        return index >= 0 and not self._missing[index] and gradients.segments[index].start >= gradients.vector.head

    def _send(self) -> None:
        span, vector = self._gradients.segments[self._next], self._gradients.vector
        vector.mean(self._gradients.sum[span], self.output[span], span.start)
        self._works.append((self._next, self.group.all_reduce(self.output[span], wait=False)))
        self._next -= 1


def _parameters_in(gradients: Accumulator, segment: slice) -> set[int]:
    spans = gradients.vector.spans
    return {number for number, span in enumerate(spans) if span.start < segment.stop and segment.start < span.stop}


@contextmanager
def _hook(parameter: Tensor, call: Callable[[Tensor], None]) -> Iterator[None]:
    handle = parameter.register_post_accumulate_grad_hook(call)
    try:
        yield
    finally:
        handle.remove()
