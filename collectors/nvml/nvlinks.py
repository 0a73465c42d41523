"""The NVLinks of one GPU: which there are, which are up, and which went down since the agent looks.

A link that was never seen up is not down: boards have links that lead nowhere. How many are up is a state (`nvlinks_active`), so that a link which
was down before the agent began still shows beside the other GPUs.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

from eagle_eye.gpu_devices import pci_text

from .driver import NvmlDriver
from .fields import FieldId
from .gpu_change import GpuChange

LINKS = 18
"""Of a GPU at most, where the package does not say (NVML_NVLINK_MAX_LINKS)."""
INACTIVE = 0
"""NVML_NVLINK_STATE_INACTIVE; a link that sleeps to save power (2) is up."""


class NvLinks:
    """State of each link. By field where the GPU knows that (Hopper and later), else by a call for each."""

    def __init__(self, driver: NvmlDriver, whom: str, handle: Any) -> None:
        """Finds the links. Raises NVMLError if the GPU or the driver is gone."""
        self._driver, self._whom = driver, whom
        self._up: dict[int, bool] = {}
        self._was_up: set[int] = set()
        self._remotes: dict[int, str] = {}
        self._unread: set[int] = set()
        most = range(getattr(driver.nvml, "NVML_NVLINK_MAX_LINKS", LINKS))
        self.numbers = self._known_by_field(handle, most)
        self.by_field = bool(self.numbers)
        if not self.by_field:  # they are numbered from 0: after the first that is unknown there is no further one
            self.numbers = tuple(takewhile(lambda link: self._state(handle, link) >= INACTIVE, most))

    def look(self, handle: Any, by_field: Mapping[int, float]) -> Iterator[GpuChange]:
        """Compare with the look before. Raises NVMLError if the GPU or the driver is gone."""
        states = by_field if self.by_field else {link: self._state(handle, link) for link in self.numbers}
        self._unread = {link for link in self.numbers if not states.get(link, math.nan) >= INACTIVE}
        for link in self.numbers:
            if link not in self._unread:
                yield from self._compare(handle, link, states[link] != INACTIVE)

    def values(self) -> dict[str, float]:
        """Links that are up, and links that were up since the agent began and are down; NaN where nothing is said of any."""
        read = [link for link in self._up if link not in self._unread]
        if not read:
            return {"nvlinks_active": math.nan, "nvlinks_down": math.nan}
        return {
            "nvlinks_active": float(sum(self._up[link] for link in read)),
            "nvlinks_down": float(sum(not self._up[link] and link in self._was_up for link in read)),
        }

    def _compare(self, handle: Any, link: int, up: bool) -> Iterator[GpuChange]:
        before, self._up[link] = self._up.get(link), up
        if up and link not in self._remotes:
            self._remotes[link] = self._remote(handle, link)
        if before is not None and before != up:
            word, remote = "up" if up else "down", self._remotes.get(link, "")
            yield GpuChange(f"gpu.nvlink_{word}", f"NVLink {link}{f' to {remote}' if remote else ''} is {word}", {"link": link, "remote": remote})
        if up:
            self._was_up.add(link)

    def _known_by_field(self, handle: Any, most: range) -> tuple[int, ...]:
        queries = [(int(FieldId.NVLINK_GET_STATE), link) for link in most]
        values = self._driver.call_or((), "nvmlDeviceGetFieldValues", self._whom, handle, queries)
        return tuple(link for link, value in enumerate(values) if not value.nvmlReturn)

    def _state(self, handle: Any, link: int) -> float:
        """NaN where the driver does not say."""
        return float(self._driver.call_or(math.nan, "nvmlDeviceGetNvLinkState", self._whom, handle, link))

    def _remote(self, handle: Any, link: int) -> str:
        """PCI address of the other end, a GPU or a switch; '' where the driver does not say."""
        found = self._driver.call_or(None, "nvmlDeviceGetNvLinkRemotePciInfo", self._whom, handle, link)
        return "" if found is None else pci_text(found)
