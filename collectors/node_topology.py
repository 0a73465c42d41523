"""Where this node is (its switch, rack and zone, by the configuration, Slurm, labels of Kubernetes and LLDP), and its devices: which port each GPU is next to.

Both are told to each job on the node once, and again when they have changed (`node.place`, `node.devices`): the servers keep them with the job's layout.
For the launchers on the node, which read no stream, the place is in a file of the run directory as well.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.config import TopologyConfig
from eagle_eye.configured_places import ConfiguredPlaces
from eagle_eye.node_devices import NODE_DEVICES, NodeGpu, NodePort, devices_attributes
from eagle_eye.node_places import NODE_PLACE, joined
from eagle_eye.place_file import NAME, read_place, write_place
from eagle_eye.ranges import Seconds
from eagle_eye.types import Event, Kind, NodePlace

from .agent.job_directory import JobDirectory
from .agent.unsigned_event import filled, unsigned_event
from .node.driver_gpus import DRIVER, driver_gpus
from .node.kernel_files import KernelFiles
from .node.link_ports import LinkPort, find_ports, state_of
from .node.pci_topology import gpu_place, nearest_ports, place_of
from .node.rails import rails_of
from .site.lldp_neighbors import COMMAND, LldpNeighbor, LldpNeighbors
from .site.node_labels import FILES, RACK_LABELS, SWITCH_LABELS, ZONE_LABELS, NodeLabels
from .site.slurm_topology import FOLDERS, SlurmTopology

log = logging.getLogger(__name__)

Attributes = Mapping[str, str]
NOBODY = LldpNeighbor("", "")
LLDP = "lldp"


@dataclass
class NodeTopologyCollector:
    """`node.place` and `node.devices` events: where this node is, its GPUs and ports, once for each job and when they change."""

    look_s: Seconds = 30.0
    """Seconds between two looks at files and ports. A new job gets them at once."""
    slurm: tuple[str, ...] = FOLDERS
    """Folders that may hold slurm.conf, and beside it topology.yaml or topology.conf; [] leaves Slurm out."""
    labels_files: tuple[str, ...] = FILES
    """Files that may hold this node's labels of Kubernetes: JSON, or the form of the downward API. The first that is there counts."""
    switch_labels: tuple[str, ...] = SWITCH_LABELS
    """Labels that may hold the switch; the first that is present counts."""
    rack_labels: tuple[str, ...] = RACK_LABELS
    """Labels that may hold the rack."""
    zone_labels: tuple[str, ...] = ZONE_LABELS
    """Labels that may hold the zone."""
    lldp: bool = True
    """Ask lldpd, where it runs, which switches the ports are connected to."""
    node: str = ""
    """Name of this node; set by the agent."""
    run_dir: Path = Path("/run/eagle-eye")
    """Run directory with the launchers' job files; set by the agent."""
    sysfs: Path = Path("/sys")
    """Where the kernel's sysfs is mounted."""
    driver: Path = DRIVER
    """Where NVIDIA's driver lists its GPUs."""
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    clock: Clock = field(default_factory=SystemClock)

    interval_s: ClassVar[float] = 1.0
    timeout_s: ClassVar[float] = 10.0

    def __post_init__(self) -> None:
        self.problems: tuple[str, ...] = ()
        """What could not be used at the last look, each with its remedy."""
        configured = ConfiguredPlaces(self.topology)
        self._rails = configured.rails(self.node)
        labels = NodeLabels(self.labels_files, switch=self.switch_labels, rack=self.rack_labels, zone=self.zone_labels)
        self._sources = PlaceSources(self.node, configured, SlurmTopology(self.slurm), labels)
        self._lldp = LldpNeighbors(COMMAND if self.lldp else ())
        self._jobs = JobDirectory(Path(self.run_dir))
        self._files = KernelFiles()
        self._rates: dict[LinkPort, float] = {}
        """The highest of each port so far, in bytes per second."""
        self._uuids: dict[str, str] = {}
        """PCI address → UUID, also of a GPU that was lost since."""
        self._place = NodePlace()
        self._gpus: list[NodeGpu] = []
        self._ports: list[NodePort] = []
        self._told: dict[str, dict[str, Attributes]] = {}
        """Job → event → what it was told."""
        self._look_at = -math.inf

    def collect(self) -> list[Event]:
        now = self.clock.monotonic()
        waited = not self._lldp.settled
        self._lldp.look(now)
        if now >= self._look_at or (waited and self._lldp.settled):
            self._look_at = now + self.look_s
            self._look()
        return list(self._news()) if self._lldp.settled else []

    @property
    def knows(self) -> str:
        """In words, for `eagle-eye agent --check`."""
        return f"{_words(self._place)}; {self._devices}"

    @property
    def _devices(self) -> str:
        return f"{len(self._gpus)} GPU{'' if len(self._gpus) == 1 else 's'} and {len(self._ports)} port{'' if len(self._ports) == 1 else 's'} of the fabric"

    # --- looking

    def _look(self) -> None:
        self._find_ports()
        rails = rails_of(self._rates, self._rails)
        fabric = sorted((port for port in self._rates if port.name in rails), key=lambda port: rails[port.name])
        self._place = self._sources.place(self._lldp.known, [port.interface.name for port in fabric if port.interface is not None])
        self._ports = [self._node_port(port, rails[port.name]) for port in fabric]
        self._gpus = self._node_gpus(fabric)
        problems = tuple(filter(None, (*self._sources.problems, self._lldp.problem, self._leave_place())))
        for problem in problems:
            if problem not in self.problems:
                log.warning("%s", problem)
        self.problems = problems

    def _leave_place(self) -> str:
        """For the launchers here, once it is known; why that cannot be, '' if it can."""
        run_dir = Path(self.run_dir)
        if not self._lldp.settled or read_place(run_dir, self.node) == self._place:
            return ""
        try:
            write_place(run_dir, self.node, self._place)
        except FileNotFoundError:  # no launcher has run here yet
            return ""
        except OSError as error:
            return f"{run_dir / NAME} cannot be written ({error.strerror}): launchers here do not know the switch of their node; let the agent write there"
        return ""

    def _find_ports(self) -> None:
        rates = {}
        for port in find_ports(self.sysfs):
            state = state_of(port, self._files)
            rates[port] = float(np.fmax(state.bytes_per_s if state.active else math.nan, self._rates.get(port, math.nan)))
        self._rates = rates

    def _node_port(self, port: LinkPort, rail: int) -> NodePort:
        neighbor = self._lldp.known.get(port.interface.name if port.interface is not None else "", NOBODY)
        return NodePort(name=port.name, pci=port.pci, numa=place_of(port.hardware).numa, rail=rail, switch=neighbor.switch, switch_port=neighbor.port)

    def _node_gpus(self, fabric: Sequence[LinkPort]) -> list[NodeGpu]:
        found = driver_gpus(self.driver)
        self._uuids = {gpu.pci: gpu.uuid or self._uuids.get(gpu.pci, "") for gpu in found}
        places = [gpu_place(self.sysfs, gpu.pci) for gpu in found]
        return [
            NodeGpu(uuid=self._uuids[gpu.pci], index=index, pci=gpu.pci, mig_instances=gpu.instances, numa=place.numa, port=port)
            for index, (gpu, place, port) in enumerate(zip(found, places, nearest_ports(places, fabric), strict=True))
        ]

    # --- telling

    def _news(self) -> Iterator[Event]:
        jobs = [job.job for job in self._jobs.read() if not job.stopped]
        self._told = {job: self._told.get(job, {}) for job in jobs}
        facts = (
            (NODE_PLACE, _attributes(self._place), f"{self.node} is at {_words(self._place)}"),
            (NODE_DEVICES, devices_attributes(self._gpus, self._ports), f"{self.node} has {self._devices}"),
        )
        for job, told in self._told.items():
            for name, attributes, message in facts:
                if attributes != told.get(name, {}):
                    told[name] = attributes
                    yield unsigned_event(name, Kind.NODE, self.node, self.clock.now(), message, job, **attributes)


def _attributes(place: NodePlace) -> Attributes:
    known = filled({"switch": place.switch, "rack": place.rack, "zone": place.zone, "source": place.source})
    return {name: str(value) for name, value in known.items()}


def _words(place: NodePlace) -> str:
    known = ", ".join(f"{name} {value}" for name, value in (("switch", place.switch), ("rack", place.rack), ("zone", place.zone)) if value)
    return f"{known} (by {place.source})" if known else "location unknown"


# --- where the node is


class PlaceSources:
    """Where one node is: what the configuration, Slurm, labels of Kubernetes and LLDP say, joined. For each value the first that knows it counts."""

    def __init__(self, node: str, configured: ConfiguredPlaces, slurm: SlurmTopology, labels: NodeLabels) -> None:
        self._node, self._configured, self._slurm, self._labels = node, configured, slurm, labels

    def place(self, neighbors: Mapping[str, LldpNeighbor], fabric: Sequence[str]) -> NodePlace:
        """`fabric`: the interfaces that training uses; others, such as one for management, hang at a switch of no interest."""
        return joined((self._configured.of(self._node), self._slurm.place_of(self._node), self._labels.place(), place_of_neighbors(neighbors, fabric)))

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be used at the last look, each with its remedy."""
        return tuple(filter(None, (self._slurm.problem, self._labels.problem)))


def place_of_neighbors(neighbors: Mapping[str, LldpNeighbor], fabric: Sequence[str]) -> NodePlace:
    """The switch at which all ports of the fabric hang; none where each rail has a switch of its own: no single one takes such a node away."""
    switches = {neighbors[interface].switch for interface in fabric if interface in neighbors}
    return NodePlace(switch=switches.pop(), source=LLDP) if len(switches) == 1 else NodePlace()
