"""The newest checkpoint of each job that is safe, as the launcher of each of its nodes has told last."""

from collections.abc import Iterable

import msgspec
from sqlalchemy import select

from eagle_eye.checkpoint_safety import NodeSafety

from .database import Database, patient, put, to_json
from .tables import safe_checkpoints


class SafetyTable(Database):
    """One row for each node of a job, replaced again and again."""

    @patient
    def save_safety(self, told: Iterable[NodeSafety]) -> None:
        """Keep them; the last one of a node counts."""
        newest = {(each.job, each.node): each for each in told}
        with self._writing() as connection:
            for (job, node), each in newest.items():
                put(connection, safe_checkpoints, {"job": job, "node": node}, {"time": each.time, "body": to_json(each)})

    @patient
    def safety(self, job: str = "") -> dict[str, tuple[NodeSafety, ...]]:
        """Job → what its nodes have told, by their names; of one job, or of all."""
        query = select(safe_checkpoints.c.job, safe_checkpoints.c.body).order_by(safe_checkpoints.c.job, safe_checkpoints.c.node)
        if job:
            query = query.where(safe_checkpoints.c.job == job)
        found: dict[str, list[NodeSafety]] = {}
        with self._reading() as connection:
            for row in connection.execute(query):
                found.setdefault(row.job, []).append(msgspec.json.decode(row.body, type=NodeSafety))
        return {name: tuple(told) for name, told in found.items()}
