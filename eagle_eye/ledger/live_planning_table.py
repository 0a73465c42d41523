"""What planning for running jobs keeps: the answers to each next event, and what transitions have cost."""

import msgspec
from sqlalchemy import delete, insert, select

from eagle_eye.types import PrecomputedPlan

from .database import Database, patient, put, to_json
from .records import TransitionCost
from .tables import standing_plans, transition_costs


class PlanningTable(Database):
    """The present one-event table, and the newest figure of each cost of a transition."""

    @patient
    def save_standing(self, plans: tuple[PrecomputedPlan, ...]) -> None:
        """These stand now, and no others."""
        with self._writing() as connection:
            connection.execute(delete(standing_plans))
            if plans:
                rows = [{"id": plan.id, "made": plan.made, "body": to_json(plan)} for plan in plans]
                connection.execute(insert(standing_plans), rows)

    @patient
    def standing(self) -> tuple[PrecomputedPlan, ...]:
        """In the order of their events."""
        with self._reading() as connection:
            kept = [msgspec.json.decode(body, type=PrecomputedPlan) for body in connection.execute(select(standing_plans.c.body)).scalars()]
        return tuple(sorted(kept, key=lambda plan: (plan.event, plan.of, plan.node)))

    @patient
    def save_transition_costs(self, seen: tuple[TransitionCost, ...]) -> None:
        """Keep them; a later figure replaces the earlier."""
        with self._writing() as connection:
            for each in seen:
                put(connection, transition_costs, {"job": each.job, "name": each.name}, {"seconds": each.seconds, "time": each.time})

    @patient
    def transition_costs(self) -> tuple[TransitionCost, ...]:
        """Of all jobs."""
        query = select(transition_costs).order_by(transition_costs.c.job, transition_costs.c.name)
        with self._reading() as connection:
            return tuple(TransitionCost(**row) for row in connection.execute(query).mappings())
