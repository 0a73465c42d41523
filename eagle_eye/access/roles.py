"""People and what they may do."""

from enum import StrEnum

import msgspec


class Role(StrEnum):
    """Each may do what the one before may."""

    VIEWER = "viewer"
    """Reads incidents and states."""
    OPERATOR = "operator"
    """Approves, refuses, releases, silences."""
    ADMIN = "admin"
    """Changes the configuration and who has access."""

    def includes(self, needed: "Role") -> bool:
        """Whether this role may do what `needed` may."""
        order = tuple(Role)
        return order.index(self) >= order.index(needed)


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks."""

    name: str
    role: Role
    tenant: str = ""
    """Empty: sees the jobs of all tenants."""

    def sees(self, job: str) -> bool:
        """Whether this person may see a job (tenant/name/run)."""
        return self.tenant in ("", job.partition("/")[0])
