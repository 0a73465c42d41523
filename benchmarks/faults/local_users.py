"""Attempts of another user of the server's machine (`nobody`), where neither certificates nor tokens are configured. Needs root."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from benchmarks.faults.attempt import Answer, Kind, line_with
from benchmarks.faults.server_process import ANSWER_S, NODES, ServerProcess, agent, launcher, report, until
from eagle_eye.rpc.control_client import ControlClient
from eagle_eye.web.alertmanager_hook import PATH
from tests.fakes.other_user import as_other_user

CONTROL = """
import asyncio
from eagle_eye.rpc.control_client import ControlClient, call
from eagle_eye.rpc.control_messages import Decision, Peer
"""
APPROVE = 'call(sys.argv[1], "approve", Decision(plan="p", person="ada", digest="d"))'
SESSION = """
async def main():
    states = []
    client = ControlClient(sys.argv[1], Peer(role=sys.argv[2], node=sys.argv[3], job=sys.argv[4], incarnation="evil"), on_state=states.append)
    await client.start()
    while not states:
        await asyncio.sleep(0.01)
    print("refused" if not states[0].connected else "connected")
asyncio.run(main())
"""
ALERT = b'{"version": "4", "alerts": [{"status": "firing", "startsAt": "2025-01-01T00:00:00Z", "labels": {"alertname": "tried"}}]}'
REQUEST = f"POST {PATH} HTTP/1.1\r\nHost: server\r\nContent-Length: {len(ALERT)}\r\n\r\n".encode() + ALERT
POST = f"""
def post():
    own = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    own.sendall({REQUEST!r})
    return own
"""
HANG_UPS = 50


class OpenServer(NamedTuple):
    """A server on loopback with nothing configured, a job of its own user, and its sessions."""

    server: ServerProcess
    coordinator: ControlClient
    agent: ControlClient


@asynccontextmanager
async def open_server(folder: Path) -> AsyncIterator[OpenServer]:
    """As on one machine without any configuration."""
    server = ServerProcess(folder, secured=False)
    try:
        await server.started()
        async with server.session(launcher(NODES[0]), None) as coordinator, server.session(agent(NODES[0]), None) as held:
            await coordinator.request("layout", report(5, *NODES))
            yield OpenServer(server, coordinator, held)
    finally:
        server.cluster.stop()


async def _logged(server: ServerProcess, words: str) -> str:
    try:
        await until(lambda: words in server.log(), ANSWER_S)
    except TimeoutError:
        return ""
    return line_with(server.log(), words)


async def _approve(opened: OpenServer) -> Answer:
    done = await asyncio.to_thread(as_other_user, CONTROL, APPROVE, opened.server.address)
    words = "approve was asked by the user nobody"
    return Answer(done.returncode != 0 and words in done.stderr, await _logged(opened.server, words))


async def _take_the_place(opened: OpenServer) -> Answer:
    peer = agent(NODES[0])
    done = await asyncio.to_thread(as_other_user, CONTROL, SESSION, opened.server.address, peer.role, peer.node, peer.job)
    return Answer(done.stdout == "refused\n" and opened.agent.connected, await opened.server.notice("the user nobody may not take the place of the agent"))


async def _be_the_agent_first(opened: OpenServer) -> Answer:
    peer = agent(NODES[1])
    done = await asyncio.to_thread(as_other_user, CONTROL, SESSION, opened.server.address, peer.role, peer.node, peer.job)
    return Answer(done.stdout == "refused\n", await opened.server.notice(f"the user nobody may not take the place of the {peer}"))


async def _join_the_job(opened: OpenServer) -> Answer:
    peer = launcher("node-x")
    done = await asyncio.to_thread(as_other_user, CONTROL, SESSION, opened.server.address, peer.role, peer.node, peer.job)
    return Answer(done.stdout == "refused\n", await opened.server.notice("belongs to the user root, not to the user nobody"))


async def _webhook(opened: OpenServer) -> Answer:
    code = POST + "print(post().recv(100).split()[1].decode())"
    done = await asyncio.to_thread(as_other_user, "", code, str(opened.server.http))
    return Answer(done.stdout == "401\n" and await _alerts(opened) == 0, await _logged(opened.server, f"{PATH} was asked by the user nobody"))


async def _hang_up(opened: OpenServer) -> Answer:
    """The kernel shows root as the owner of a socket that its process has closed."""
    await asyncio.to_thread(as_other_user, "", POST + f"for _ in range({HANG_UPS}): post().close()", str(opened.server.http))
    return Answer(await _alerts(opened) == 0, await _logged(opened.server, f"{PATH} was asked by a user who cannot be told"))


async def _alerts(opened: OpenServer) -> float:
    """How many the server has taken. Asked after them, its answer comes after whatever became of them."""
    scraped = await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{opened.server.http}/metrics")
    return sum(float(line.split()[-1]) for line in scraped.text.splitlines() if line.startswith("eagle_eye_site_alerts_total"))


async def _proxy(opened: OpenServer) -> Answer:
    answer = await asyncio.to_thread(
        httpx.post, f"http://127.0.0.1:{opened.server.http}{PATH}", content=ALERT, headers={"X-Forwarded-For": "127.0.0.1"}
    )
    return Answer(answer.status_code == 401, await _logged(opened.server, "came through a proxy, or from another machine"))


KIND = Kind(
    "local users",
    open_server,
    {
        "another local user approves a plan": _approve,
        "another local user takes the place of the agent": _take_the_place,
        "another local user opens the session of an agent that has not begun": _be_the_agent_first,
        "another local user opens a session of the job": _join_the_job,
        "another local user posts to the webhook": _webhook,
        "another local user posts to the webhook and hangs up before it is looked up": _hang_up,
        "somebody elsewhere posts through a proxy of the server's machine": _proxy,
    },
)
