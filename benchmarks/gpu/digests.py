"""Digests of replicas on a GPU: are they those of the same bits on the host, and what do they cost a training? Needs a GPU: without one it ends with 2.

    python -m benchmarks.gpu.digests [--parameters 1e9] [--json]

The peer is a sum of all parameters as torch gives it, which sees no bit that rounding hides.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator

import torch

from benchmarks.gpu.checkpoints import on_gpu
from benchmarks.gpu.kernels import spin
from benchmarks.report import Row, report
from eagle_eye.training import replica_digest

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

    def behind_a_kernel() -> None:
        spin(QUEUED_S)
        once()

    alone = [on_gpu(lambda: spin(QUEUED_S)) for _ in range(TRIES)]
    taken = [on_gpu(once) for _ in range(TRIES + 1)]
    host_s = statistics.median(host[1:])
    gpu_s = statistics.median(on_gpu(behind_a_kernel) for _ in range(TRIES)) - statistics.median(alone)  # all is queued when the GPU begins with it
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
    rows = [*equality(tensors), *costs(tensors)]
    return report(rows, options.json, f"digests of replicas on {torch.cuda.get_device_name()}")


if __name__ == "__main__":
    sys.exit(main())
