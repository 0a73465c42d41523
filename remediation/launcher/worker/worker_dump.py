"""What a worker is doing right now, seen from outside: Python stacks without locals, and its collectives."""

import asyncio
from pathlib import Path

from eagle_eye.activity.python_stacks import PY_SPY_S, py_spy
from eagle_eye.redaction import redact
from eagle_eye.rpc.control_messages import Body
from eagle_eye.training import live_flight_recorder

from .worker_process import Worker


async def dump_workers(workers: list[Worker]) -> Body:
    """Worker → its stack and flight record, all at the same time."""
    dumps = await asyncio.gather(*(_dump(worker) for worker in workers))
    return {worker.name: words for worker, words in zip(workers, dumps, strict=True)}


async def _dump(worker: Worker) -> Body:
    recorder = live_flight_recorder.path_beside(str(worker.socket))
    stack, record = await asyncio.gather(stack_of(worker.pid), asyncio.to_thread(live_flight_recorder.dump, recorder))
    return {"stack": redact(stack), "flight_recorder": record}


async def stack_of(pid: int) -> str:
    """Stacks of all threads by py-spy; what the kernel knows where py-spy may not look."""
    program = py_spy()
    if program is None:
        return kernel_view(pid, "py-spy is not installed: pip install eagle-eye[node]")
    process = await asyncio.create_subprocess_exec(
        program, "dump", "--full-filenames", "--pid", str(pid), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(PY_SPY_S):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return kernel_view(pid, f"py-spy did not answer within {PY_SPY_S:g} s")
    if process.returncode != 0:
        return kernel_view(pid, f"py-spy: {err.decode(errors='replace').strip()[-300:]}")
    return out.decode(errors="replace")


def kernel_view(pid: int, why: str) -> str:
    """State, waiting point and kernel stack of a process."""
    parts = [f"({why})"]
    for name in ("status", "wchan", "stack"):
        try:
            text = Path(f"/proc/{pid}/{name}").read_text(errors="replace")
        except OSError as error:
            text = error.strerror or "cannot be read"
        if name == "status":
            text = "\n".join(line for line in text.splitlines() if line.startswith(("State", "Threads", "SigBlk")))
        parts.append(f"{name}: {text.strip()}")
    return "\n".join(parts)
