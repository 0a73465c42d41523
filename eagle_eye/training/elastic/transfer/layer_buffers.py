"""The layers that a worker gives or takes, each in memory only while it is on its way."""

from collections import Counter
from collections.abc import Iterable, Mapping

from eagle_eye.training.elastic.train_state.layer_chunks import LayerBytes
from eagle_eye.training.elastic.train_state.train_state import LayerState


class LayerBuffers:
    """Contents by layer. `users`: a layer's index once for each worker it goes to, or comes from."""

    def __init__(self, layers: Mapping[int, LayerState], users: Iterable[int], *, to_fill: bool = False) -> None:
        self._layers, self._left, self._to_fill = layers, Counter(users), to_fill
        self._contents: dict[int, LayerBytes] = {}
        self._digests: dict[int, str] = {}

    def content(self, layer: int) -> LayerBytes:
        """The bytes of a layer; of one on a GPU a copy is made now."""
        if layer not in self._contents:
            self._contents[layer] = LayerBytes(self._layers[layer], to_fill=self._to_fill)
        return self._contents[layer]

    def release(self, layer: int) -> None:
        """One of its users has done with it."""
        self._left[layer] -= 1
        if self._left[layer] > 0:
            return
        content = self.content(layer)
        self._digests[layer] = content.digest()
        if self._to_fill:
            content.settle()
        del self._contents[layer]

    def digest(self, layer: int) -> str:
        """Of a layer that all or some have done with."""
        return self._digests[layer] if layer in self._digests else self.content(layer).digest()
