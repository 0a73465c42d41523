"""A launcher speaks for its own node: what one says of another's workers, or in another's name, is not believed."""

from collections.abc import Iterator

from eagle_eye.rpc.control_messages import Body, Peer


def objection(peer: Peer, kind: str, body: Body) -> str:
    """Why a request is not believed of this peer; '' if it is."""
    if peer.role != "launcher":
        return f"the {peer} may not send {kind!r}: the job's launchers do"
    for node in _spoken_for(body):
        if node != peer.node:
            return f"the {peer} may not send {kind!r} for {node}"
    return ""


def _spoken_for(body: Body) -> Iterator[str]:
    """Nodes that a request names as its own, and those of the workers that it tells of."""
    request = body.get("join_request")
    for words in (body, request if isinstance(request, dict) else {}):
        if "node" in words:
            yield str(words["node"])
        if "worker" in words:
            yield from _node_of(words["worker"])
    for held in body.get("holdings") or ():
        yield from _node_of(held.get("worker") if isinstance(held, dict) else held)
    for silent in body.get("silent") or ():
        yield from _node_of(silent)


def _node_of(worker: object) -> Iterator[str]:
    """Of the name run/node/slot."""
    parts = str(worker).split("/")
    if len(parts) == 3:
        yield parts[1]
