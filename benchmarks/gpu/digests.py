"""Digests on a GPU, of replicas and of what a step is given: are they those of the same bits on the host, and what do they cost a training? Needs a GPU: without one it ends with 2.

    python -m benchmarks.gpu.digests [--parameters 1e9] [--json]

The peer is a sum of all parameters as torch gives it, which sees no bit that rounding hides.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, islice

import torch

from benchmarks.gpu.checkpoints import on_gpu
from benchmarks.gpu.kernels import spin
from benchmarks.report import Row, report
from eagle_eye.training import batch_digest, replica_digest

NO_GPU = 2
TENSORS, TRIES = 300, 10
SPIN_S = 1.0
QUEUED_S = 0.2
"""Longer than the host takes to queue a digest."""
STEP_S = 0.1
"""A short step for a model of a billion parameters on one GPU."""


def digest(tensors: list[torch.Tensor]) -> int:
    """As a number, waited for."""
    found, _ = replica_digest.digest_of(tensors)
    if found is None:
        raise RuntimeError("none of the tensors can be read")
    return int(found.item())


def equality(tensors: list[torch.Tensor]) -> Iterator[Row]:
    """Beside the host's, and with one bit flipped."""
    host = digest([each.cpu() for each in tensors])
    ours = digest(tensors)
    yield Row("the digest on the GPU and on the host", f"{ours}, {host}", "equal", ours == host)
    victim = tensors[TENSORS // 2].view(torch.int16)
    before, plain = ours, float(sum(each.double().sum() for each in tensors))
    found = blind = 0
    for mask in (*(1 << bit for bit in range(15)), -(1 << 15)):
        victim[7] ^= mask
        found += digest(tensors) != before
        blind += float(sum(each.sum() for each in tensors)) == plain
        victim[7] ^= mask
    yield Row("one flipped bit, each of 16: another digest", f"{found} of 16", "16", found == 16, f"the sum of the parameters is the same in {blind}")


def costs(tensors: list[torch.Tensor]) -> Iterator[Row]:
    """Of the host and of the GPU."""
    size = sum(each.nbytes for each in tensors)
    host: list[float] = []

    def once() -> None:
        began = time.perf_counter()
        replica_digest.digest_of(tensors)
        host.append(time.perf_counter() - began)

    alone = [on_gpu(lambda: spin(QUEUED_S)) for _ in range(TRIES)]
    taken = [on_gpu(once) for _ in range(TRIES + 1)]
    host_s = statistics.median(host[1:])
    gpu_s = statistics.median(on_gpu(lambda: behind_a_kernel(once)) for _ in range(TRIES)) - statistics.median(alone)
    yield Row(f"a digest of {size / 1e9:.1f} GB in {TENSORS} tensors on the GPU", f"{gpu_s * 1000:.2f} ms, {size / gpu_s / 1e9:.0f} GB/s", f"≥ {replica_digest.GPU_BYTES_PER_S / 1e9:.0f} GB/s", size / gpu_s >= replica_digest.GPU_BYTES_PER_S)
    every = replica_digest.interval(host_s + size / replica_digest.GPU_BYTES_PER_S, STEP_S)
    share = statistics.median(taken[1:]) / (every * STEP_S)
    yield Row(f"of the time, at steps of {STEP_S * 1000:.0f} ms: every {every} steps", f"{share:.3%}; {host_s * 1000:.2f} ms of the host", f"≤ {replica_digest.SHARE:.1%}", share <= replica_digest.SHARE)
    torch.cuda.synchronize()
    spin(SPIN_S)
    began = time.perf_counter()
    replica_digest.digest_of(tensors)
    waited = time.perf_counter() - began
    torch.cuda.synchronize()
    yield Row(f"the host, behind a kernel of about {SPIN_S:g} s", f"goes on after {waited * 1000:.1f} ms", f"≤ {SPIN_S / 2 * 1000:.0f} ms", waited <= SPIN_S / 2)


def batch_of(texts: int, images: int) -> dict[str, torch.Tensor]:
    """Tokens with their labels, and images, where there are some."""
    tokens = {name: torch.randint(50_000, (texts, 4096), device="cuda") for name in ("input_ids", "labels")} if texts else {}
    return tokens | ({"images": torch.randn(images, 3, 224, 224, device="cuda").bfloat16()} if images else {})


def behind_a_kernel(act: Callable[[], object]) -> None:
    """All is queued when the GPU begins with it."""
    spin(QUEUED_S)
    act()


def batches() -> Iterator[Row]:
    """Their digests: two of what is the same, and of what is not; and what one costs the host and the GPU."""
    for name, texts, images in (("32 texts of 4,096 tokens", 32, 0), ("256 images", 0, 256)):
        batch, other = batch_of(texts, images), batch_of(texts, images)
        digests, host = batch_digest.BatchDigests(time.perf_counter_ns), list[float]()

        def once(step: int, given: dict[str, torch.Tensor] = batch, digests: batch_digest.BatchDigests = digests, host: list[float] = host) -> object:
            began = time.perf_counter()
            digests.add(step, given)
            found = digests.end(step, STEP_S)
            host.append(time.perf_counter() - began)
            return found

        due = list(islice((step for step in count() if batch_digest.is_due(step, 64)), 5 + TRIES))
        found = [once(step, given) for step, given in zip(due, (batch, batch, other, batch), strict=False)]
        told = [each.item() for each in found if isinstance(each, torch.Tensor)]
        yield Row(f"digests of {name}: the same, the same, others, the same", ", ".join(f"{each:.0f}" for each in told), "three equal", len(told) == 4 and told[0] == told[1] == told[3] != told[2])
        host.clear()
        alone = statistics.median(on_gpu(lambda: spin(QUEUED_S)) for _ in range(TRIES))
        behind = statistics.median(on_gpu(lambda step=step: behind_a_kernel(lambda: once(step))) for step in due[4 : 4 + TRIES])  # type: ignore[misc]
        share = statistics.median(host) / (replica_digest.interval(statistics.median(host), STEP_S, batch_digest.SHARE, 1) * STEP_S)
        yield Row(f"the same, of {name}: host, GPU; of the time at steps of {STEP_S * 1000:.0f} ms", f"{statistics.median(host) * 1e6:.0f} µs, {(behind - alone) * 1e6:.0f} µs; {share:.4%}", f"≤ {batch_digest.SHARE:.2%}", share <= batch_digest.SHARE)
        torch.cuda.synchronize()
        spin(SPIN_S)
        began = time.perf_counter()
        once(due[4 + TRIES])
        waited = time.perf_counter() - began
        torch.cuda.synchronize()
        yield Row(f"the same, of {name}: the host, behind a kernel of about {SPIN_S:g} s", f"goes on after {waited * 1000:.2f} ms", f"≤ {SPIN_S / 2 * 1000:.0f} ms", waited <= SPIN_S / 2)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=1e9, help="of the model, in bfloat16 (1e9)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU that torch can use: nothing to measure", file=sys.stderr)
        return NO_GPU
    sizes = [int(options.parameters) // TENSORS // 8 * 8 + 8 * number for number in range(TENSORS - 3)] + [1, 7, 1001]
    tensors = [torch.randn(size, device="cuda").bfloat16() for size in sizes]
    rows = [*equality(tensors), *costs(tensors), *batches()]
    return report(rows, options.json, f"digests on {torch.cuda.get_device_name()}")


if __name__ == "__main__":
    sys.exit(main())
