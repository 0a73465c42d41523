"""One replica of torchft's data parallelism, run in torchft's own environment.

    python -m benchmarks.elastic.peers.torchft_worker --slot 0 --lighthouse http://127.0.0.1:29510 --reduction ddp

`ddp` is the wrapper that torchft's examples use; `allreduce` hands all gradients to the manager at once after the last
micro-batch, which has nothing in flight that the wrapper could trip over when a peer dies.
"""

import argparse
import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchft.ddp import DistributedDataParallel
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo

from benchmarks.elastic.byte_gpt import MICRO_BATCHES, SIZES, batch_of, layers_of, loss_of, optimizer_of, share_of
from benchmarks.elastic.commits import Written, hang_when_told


class Replica:
    """The training loop."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.size = options, SIZES[options.size]
        self.network: nn.Module = nn.Sequential(*layers_of(self.size))
        self.parameters = list(self.network.parameters())
        self.optimizer = optimizer_of(self.parameters)
        self.manager = self.managed()
        self.wrapped = DistributedDataParallel(self.manager, self.network) if options.reduction == "ddp" else None

    def managed(self) -> Any:
        options = self.options
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        given = timedelta(seconds=options.timeout)
        timeouts = {"timeout": given, "quorum_timeout": given, "connect_timeout": given} if given else {}
        return Manager(
            pg=ProcessGroupGloo(**({"timeout": given} if given else {})), load_state_dict=self.load, state_dict=self.state, min_replica_size=1, rank=0, world_size=1,
            store_addr="127.0.0.1", store_port=self.store.port, lighthouse_addr=options.lighthouse, hostname="127.0.0.1",
            replica_id=f"replica_{options.slot}", **timeouts,
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        return {"model": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def run(self) -> None:
        """Train until somebody ends it."""
        written = Written(str(self.options.slot))
        while True:
            step = self.manager.current_step()
            self.manager.start_quorum()
            self.optimizer.zero_grad()
            loss = self.by_wrapper(step) if self.wrapped is not None else self.by_hand(step)
            if self.manager.should_commit():
                self.optimizer.step()
                written.add(step, loss, participants=self.manager.num_participants())

    def by_wrapper(self, step: int) -> float:
        """Gradients are reduced while the last micro-batch goes backward."""
        assert self.wrapped is not None
        *early, last = share_of(self.options.slot, self.options.workers)
        with self.wrapped.no_sync():
            total = sum(self.forward_and_backward(self.wrapped, step, micro) for micro in early)
        return total + self.forward_and_backward(self.wrapped, step, last)

    def by_hand(self, step: int) -> float:
        """Gradients are reduced after the last micro-batch."""
        mine = share_of(self.options.slot, self.options.workers)
        total = sum(self.forward_and_backward(self.network, step, micro) for micro in mine)
        gradients: list[Tensor] = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self.manager.allreduce(flat).wait()
        for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
        return total

    def forward_and_backward(self, network: Callable[[Tensor], Tensor], step: int, micro: int) -> float:
        given, targets = batch_of(self.size, step, micro)
        loss = loss_of(network(given), targets)
        (loss * self.options.workers / MICRO_BATCHES).backward()  # the manager divides by the participants
        return loss.item()


def main() -> None:
    """Train until somebody ends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slot", type=int, required=True)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--lighthouse", required=True)
    parser.add_argument("--reduction", choices=("ddp", "allreduce"), default="ddp")
    parser.add_argument("--timeout", type=float, default=0.0, help="of everything, in seconds; 0: torchft's own values")
    parser.add_argument("--size", choices=SIZES, default="full")
    options = parser.parse_args()
    torch.set_num_threads(1)
    hang_when_told()
    with contextlib.suppress(KeyboardInterrupt):
        Replica(options).run()


if __name__ == "__main__":
    main()
