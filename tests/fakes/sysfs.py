"""A small /sys of network cards, as files that a test changes."""

from dataclasses import dataclass, field
from pathlib import Path

NDR = "400 Gb/sec (4X NDR)"
HDR = "200 Gb/sec (4X HDR)"
ACTIVE, INIT, DOWN = "4: ACTIVE", "2: INIT", "1: DOWN"


@dataclass
class Sysfs:
    """`root` is what a collector gets for /sys."""

    root: Path
    bridges: dict[str, str] = field(default_factory=dict)
    """PCI address → what it is behind, if not the host bridge pci0000:00."""

    def card(self, pci: str, behind: str = "", numa: int = -1) -> Path:
        """The folder of a PCI function; made if it is not there. `behind`: bridges such as pci0000:15/0000:15:01.0."""
        known = self.bridges.setdefault(pci, behind or "pci0000:00")
        folder = self.root / "devices" / known / pci
        if not folder.exists():
            self.write(folder / "numa_node", str(numa))
            listed = self.root / "bus" / "pci" / "devices" / pci
            listed.parent.mkdir(parents=True, exist_ok=True)
            listed.symlink_to(folder)
        return folder

    def rdma(self, device: str, pci: str, *, rate: str = NDR, state: str = ACTIVE, layer: str = "InfiniBand", **counters: str) -> Path:
        """A device with one port. Returns the folder of the port; `counters`: file → content, below `counters`."""
        port = self.root / "class" / "infiniband" / device / "ports" / "1"
        self._link(port.parents[1], self.card(pci))
        told = {"state": state, "phys_state": "5: LinkUp", "rate": rate, "link_layer": layer}
        for name, text in {**told, **{f"counters/{name}": text for name, text in counters.items()}}.items():
            self.write(port / name, text)
        return port

    def interface(self, name: str, pci: str = "", *, speed: str = "25000", state: str = "up", kind: str = "1", **statistics: str) -> Path:
        """An Ethernet interface; without hardware if `pci` is empty. Returns its folder; `statistics`: file → content."""
        folder = self.root / "class" / "net" / name
        told = {"operstate": state, "carrier": "1", "speed": speed, "type": kind, "flags": "0x1003", "dev_port": "0"}
        for file, text in {**told, **{f"statistics/{file}": text for file, text in statistics.items()}}.items():
            self.write(folder / file, text)
        if pci:
            self._link(folder, self.card(pci))
        return folder

    @staticmethod
    def write(path: Path, text: str) -> None:
        """Its content, with the line feed that the kernel ends it with."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    @staticmethod
    def _link(folder: Path, card: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "device").symlink_to(card)
