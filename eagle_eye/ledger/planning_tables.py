"""What the planner keeps for running jobs: the event table of precomputed plans, measured costs of transitions, and measured throughput T."""

from collections.abc import Iterable

import msgspec
from sqlalchemy import delete, insert, select

from eagle_eye.types import PrecomputedPlan

from .database import Database, patient, put, to_json
from .records import Throughput, TransitionCost
from .tables import precomputed_plans, throughputs, transition_costs


class PlanningTable(Database):
    """The present event table, the newest cost of each transition, and the newest throughput of each job and number of workers.

    The throughputs of a job that is over stay: its next run starts with them.
    """

    @patient
    def save_precomputed_plans(self, plans: tuple[PrecomputedPlan, ...]) -> None:
        """Replace the event table by these plans."""
        with self._writing() as connection:
            connection.execute(delete(precomputed_plans))
            if plans:
                rows = [{"id": plan.id, "made": plan.made, "body": to_json(plan)} for plan in plans]
                connection.execute(insert(precomputed_plans), rows)

    @patient
    def precomputed_plans(self) -> tuple[PrecomputedPlan, ...]:
        """The plans of the event table, in the order of their events."""
        with self._reading() as connection:
            kept = [msgspec.json.decode(body, type=PrecomputedPlan) for body in connection.execute(select(precomputed_plans.c.body)).scalars()]
        return tuple(sorted(kept, key=lambda plan: (plan.event, plan.of, plan.node)))

    @patient
    def save_transition_costs(self, seen: tuple[TransitionCost, ...]) -> None:
        """Keep them; a later cost replaces the earlier one of the same job and name."""
        with self._writing() as connection:
            for each in seen:
                put(connection, transition_costs, {"job": each.job, "name": each.name}, {"seconds": each.seconds, "time": each.time})

    @patient
    def transition_costs(self) -> tuple[TransitionCost, ...]:
        """Of all jobs."""
        query = select(transition_costs).order_by(transition_costs.c.job, transition_costs.c.name)
        with self._reading() as connection:
            return tuple(TransitionCost(**row) for row in connection.execute(query).mappings())

    @patient
    def save_throughputs(self, seen: tuple[Throughput, ...]) -> None:
        """Keep them; a later value replaces the earlier one of the same job and number of workers."""
        with self._writing() as connection:
            for each in seen:
                values = {"tokens_per_s": each.tokens_per_s, "steps_per_s": each.steps_per_s, "time": each.time}
                put(connection, throughputs, {"job": each.job, "workers": each.workers}, values)

    @patient
    def throughputs(self, jobs: Iterable[str] = ()) -> tuple[Throughput, ...]:
        """Of these jobs (tenant/name), or of all."""
        query = select(throughputs).order_by(throughputs.c.job, throughputs.c.workers)
        wanted = list(jobs)
        if wanted:
            query = query.where(throughputs.c.job.in_(wanted))
        with self._reading() as connection:
            return tuple(Throughput(**row) for row in connection.execute(query).mappings())
