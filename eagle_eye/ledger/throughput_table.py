"""What jobs reached on how many workers: the planner's T, as it was measured on this cluster."""

from collections.abc import Iterable

from sqlalchemy import select

from .database import Database, patient, put
from .records import Throughput
from .tables import throughputs


class ThroughputTable(Database):
    """The newest figure of each job and number of workers. Jobs that are over stay: their next run profits."""

    @patient
    def save_throughputs(self, seen: tuple[Throughput, ...]) -> None:
        """Keep them; a later figure replaces the earlier."""
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
