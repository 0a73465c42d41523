"""The tables as they are now; migrations/ says how they came to be. Portable SQL only."""

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, MetaData, String, Table, Text

metadata = MetaData(
    naming_convention={"pk": "pk_%(table_name)s", "ix": "ix_%(table_name)s_%(column_0_N_name)s"},
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("term", BigInteger, nullable=False),
    Column("host", String(255), nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("incarnation", String(64), nullable=False),
    Column("since", Double, nullable=False),
    Column("until", Double, nullable=False),
)

incidents = Table(
    "incidents",
    metadata,
    Column("id", String(200), primary_key=True),
    Column("job", String(400), nullable=False),
    Column("state", String(20), nullable=False),
    Column("revision", Integer, nullable=False),
    Column("opened", Double, nullable=False),
    Column("changed", Double, nullable=False),
    Column("body", Text, nullable=False),
    Index(None, "state", "opened"),
    Index(None, "job", "opened"),
    Index(None, "opened"),
)

incident_revisions = Table(
    "incident_revisions",
    metadata,
    Column("incident", String(200), primary_key=True),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("time", Double, nullable=False),
    Column("body", Text, nullable=False),
)

incident_states = Table(
    "incident_states",
    metadata,
    Column("incident", String(200), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("state", String(20), nullable=False),
    Column("time", Double, nullable=False),
)

findings = Table(
    "findings",
    metadata,
    Column("id", String(200), primary_key=True),
    Column("revision", Integer, nullable=False),
    Column("job", String(400), nullable=False),
    Column("kind", String(100), nullable=False),
    Column("active", Boolean, nullable=False),
    Column("time", Double, nullable=False),
    Column("body", Text, nullable=False),
    Index(None, "active", "job", "time"),
    Index(None, "time"),
)

plans = Table(
    "plans",
    metadata,
    Column("id", String(200), primary_key=True),
    Column("incident", String(200), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("made", Double, nullable=False),
    Column("body", Text, nullable=False),
    Index(None, "incident"),
    Index(None, "made"),
)

progress = Table(
    "progress",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("plan", String(200), nullable=False),
    Column("step", String(200), nullable=False),
    Column("state", String(20), nullable=False),
    Column("time", Double, nullable=False),
    Column("body", Text, nullable=False),
    Index(None, "plan", "number"),
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("plan", String(200), primary_key=True),
    Column("incident", String(200), nullable=False),
    Column("state", String(20), nullable=False),
    Column("time", Double, nullable=False),
    Column("body", Text, nullable=False),
    Index(None, "incident"),
    Index(None, "time"),
)

approvals = Table(
    "approvals",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("time", Double, nullable=False),
    Column("expires", Double, nullable=False),
    Column("body", Text, nullable=False),
    Index(None, "digest", "time"),
    Index(None, "expires"),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("plan", String(200), nullable=False),
    Column("incident", String(200), nullable=False),
    Column("time", Double, nullable=False),
    Column("body", Text, nullable=False),
    Index(None, "incident"),
    Index(None, "plan"),
)

notices = Table(
    "notices",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("name", String(100), nullable=False),
    Column("time", Double, nullable=False),
    Column("body", Text, nullable=False),
    Index(None, "time"),
)

epochs = Table(
    "epochs",
    metadata,
    Column("job", String(400), primary_key=True),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", String(64), nullable=False),
    Column("body", Text, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("job", String(400), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
)

job_owners = Table(
    "job_owners",
    metadata,
    Column("job", String(400), primary_key=True),
    Column("changed", Double, nullable=False),
    Column("body", Text, nullable=False),
    Index(None, "changed"),
)

cordons = Table(
    "cordons",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("node", String(255), nullable=False),
    Column("since", Double, nullable=False),
    Column("released", Double, nullable=True),
    Column("person", String(200), nullable=True),
    Column("body", Text, nullable=False),
    Index(None, "node", "released"),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(100), nullable=False),
    Column("body", Text, nullable=False),
    Column("made", Double, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_try", Double, nullable=False),
    Column("done", Double, nullable=True),
    Column("error", Text, nullable=False),
    Index(None, "done", "next_try"),
)

suppressions = Table(
    "suppressions",
    metadata,
    Column("id", String(200), primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("since", Double, nullable=False),
    Column("until", Double, nullable=True),
    Column("body", Text, nullable=False),
    Index(None, "kind", "until"),
)

notes = Table(
    "notes",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("incident", String(200), nullable=False),
    Column("time", Double, nullable=False),
    Column("body", Text, nullable=False),
    Index(None, "incident"),
)

alerts = Table(
    "alerts",
    metadata,
    Column("id", String(200), primary_key=True),
    Column("storm", String(200), nullable=False, default=""),
    Column("number", Integer, nullable=False, default=0),
    Column("opened", Double, nullable=False, default=0.0),
    Column("changed", Double, nullable=False, default=0.0),
    Column("over", Double, nullable=True),
    Column("news", Text, nullable=False, default=""),
    Column("body", Text, nullable=False, default=""),
    Index(None, "over", "opened"),
)

approval_links = Table(
    "approval_links",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("plan", String(200), nullable=False),
    Column("incident", String(200), nullable=False),
    Column("job", String(400), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("made", Double, nullable=False),
    Column("expires", Double, nullable=False),
    Column("used", Double, nullable=True),
    Column("person", String(200), nullable=True),
    Column("approved", Boolean, nullable=True),
    Index(None, "expires"),
)

throughputs = Table(
    "throughputs",
    metadata,
    Column("job", String(400), primary_key=True),
    Column("workers", Integer, primary_key=True, autoincrement=False),
    Column("tokens_per_s", Double, nullable=True),
    Column("steps_per_s", Double, nullable=True),
    Column("time", Double, nullable=False),
)

transition_costs = Table(
    "transition_costs",
    metadata,
    Column("job", String(400), primary_key=True),
    Column("name", String(40), primary_key=True),
    Column("seconds", Double, nullable=False),
    Column("time", Double, nullable=False),
)

precomputed_plans = Table(
    "precomputed_plans",
    metadata,
    Column("id", String(200), primary_key=True),
    Column("made", Double, nullable=False),
    Column("body", Text, nullable=False),
)

changes = Table(
    "changes",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("entity", String(400), nullable=False),
    Column("job", String(400), nullable=False),
    Column("time", Double, nullable=False),
    Column("body", Text, nullable=False),
    Index(None, "entity", "time"),
    Index(None, "job", "time"),
    Index(None, "time"),
)

safe_checkpoints = Table(
    "safe_checkpoints",
    metadata,
    Column("job", String(400), primary_key=True),
    Column("node", String(255), primary_key=True),
    Column("time", Double, nullable=False),
    Column("body", Text, nullable=False),
)
