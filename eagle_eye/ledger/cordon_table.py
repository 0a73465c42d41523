"""Cordons: nodes that take no part in a job, the plan that evicted them, and the operator who released them."""

import msgspec
from sqlalchemy import insert, select, update

from .database import Database, patient, to_json
from .records import Cordon, PastCordon
from .tables import cordons


class CordonTable(Database):
    """Cordoned nodes. All cordons ever made are kept."""

    @patient
    def cordon(self, node: str, job: str, plan: str, time: float, reason: str = "") -> bool:
        """Cordon a node; False if it is cordoned already (the first plan stays its reason)."""
        cordon = Cordon(node=node, job=job, plan=plan, reason=reason, since=time)
        with self._writing() as connection:
            out = (cordons.c.node == node, cordons.c.released.is_(None))
            if connection.execute(select(cordons.c.number).where(*out)).first() is not None:
                return False
            connection.execute(insert(cordons), {"node": node, "since": time, "body": to_json(cordon)})
            return True

    @patient
    def release(self, node: str, person: str, time: float) -> bool:
        """Release a node; False if it was not cordoned."""
        out = (cordons.c.node == node, cordons.c.released.is_(None))
        with self._writing() as connection:
            return connection.execute(update(cordons).where(*out).values(released=time, person=person)).rowcount > 0

    @patient
    def cordoned(self) -> tuple[Cordon, ...]:
        """Nodes that are cordoned now, oldest first."""
        query = select(cordons.c.body).where(cordons.c.released.is_(None)).order_by(cordons.c.number)
        with self._reading() as connection:
            return tuple(msgspec.json.decode(body, type=Cordon) for body in connection.execute(query).scalars())

    @patient
    def past_cordons(self, node: str, limit: int = 100) -> tuple[PastCordon, ...]:
        """Cordons of a node that are over, the one that was released last first."""
        table = cordons
        query = select(table).where(table.c.node == node, table.c.released.is_not(None)).order_by(table.c.released.desc()).limit(limit)
        with self._reading() as connection:
            return tuple(
                PastCordon(cordon=msgspec.json.decode(row.body, type=Cordon), released=row.released, person=row.person or "")
                for row in connection.execute(query)
            )
