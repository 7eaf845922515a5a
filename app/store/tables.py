"""The tables. Times are microseconds UTC, JSON is text, every row that can be owned names its principal."""

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

metadata = MetaData()

principals = Table(
    "principals",
    metadata,
    Column("id", Text, primary_key=True),
    Column("created_at", BigInteger, nullable=False),
)

keys = Table(
    "keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("principal", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("digest", Text, nullable=False, unique=True),
    Column("created_at", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
    Column("bounds", Text),
)

sessions = Table(
    "sessions",
    metadata,
    Column("principal", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("agent", Text),
    Column("model", Text),
    Column("plan", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("workspace", Text),
    Column("approval", Text),
    Column("rules", Text),
    Column("is_trusted", BigInteger, nullable=False, server_default="0"),
    Column("network_policy", Text),
    Column("env", Text),
    Column("labels", Text),
    Column("updated_at", BigInteger, nullable=False, server_default="0"),
    Column("profile", Text),
    PrimaryKeyConstraint("principal", "id"),
)

calls = Table(
    "calls",
    metadata,
    Column("id", Text, primary_key=True),
    Column("principal", Text, nullable=False),
    Column("session", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("waiting", Text),
    Column("arguments", Text),
    Column("input", Text),
    Column("effective", Text),
    Column("call_id", Text),
    Column("message_id", Text),
    Column("parent", Text),
    Column("metadata", Text),
    Column("options", Text),
    Column("result", Text),
    Column("error", Text),
    Column("sandbox", Text),
    Column("owner", Text, nullable=False),
    Column("cancel_requested", BigInteger),
    Column("attempt", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("duration_us", BigInteger),
    Column("output_dropped", BigInteger, nullable=False),
    Column("sealed", LargeBinary),
    Column("key", Text),
    Column("deadline", BigInteger),
)
Index("calls_by_principal", calls.c.principal, calls.c.id)
Index("calls_by_session", calls.c.principal, calls.c.session, calls.c.id)
_has_message = text("message_id IS NOT NULL")
Index(
    "calls_by_message",
    calls.c.message_id,
    calls.c.id,
    sqlite_where=_has_message,
    postgresql_where=_has_message,
)
_is_open = text("status IN ('pending', 'running')")
Index("calls_open", calls.c.status, calls.c.id, sqlite_where=_is_open, postgresql_where=_is_open)
_is_failed = text("status = 'error'")
Index("calls_failed", calls.c.id, sqlite_where=_is_failed, postgresql_where=_is_failed)
Index("calls_by_tool", calls.c.tool, calls.c.id)

events = Table(
    "events",
    metadata,
    Column("seq", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=False),
    Column("type", Text, nullable=False),
    Column("call", Text),
    Column("principal", Text, nullable=False),
    Column("session", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("data", Text),
)
Index("events_by_call", events.c.call, events.c.seq)
Index("events_by_principal", events.c.principal, events.c.seq)

outputs = Table(
    "outputs",
    metadata,
    Column("call", Text, nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("stop", BigInteger, nullable=False),
    Column("stream", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
    PrimaryKeyConstraint("call", "start"),
)

attachments = Table(
    "attachments",
    metadata,
    Column("call", Text, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("stop", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    PrimaryKeyConstraint("call", "number", "start"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("principal", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("call", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("principal", "key"),
)
Index("idempotency_keys_by_call", idempotency_keys.c.call)

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("principal", Text, nullable=False),
    Column("session", Text, nullable=False),
    Column("dialect", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
Index("runs_by_fingerprint", runs.c.principal, runs.c.fingerprint, unique=True)

secrets = Table(
    "secrets",
    metadata,
    Column("principal", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("value", LargeBinary, nullable=False),
    Column("domains", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("principal", "name"),
)

asks = Table(
    "asks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("call", Text, nullable=False),
    Column("principal", Text, nullable=False),
    Column("session", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("answer", Text),
    Column("reason", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
)
Index("asks_by_call", asks.c.call)
Index("asks_by_principal", asks.c.principal, asks.c.id)
_is_waiting = text("status = 'open'")
Index("asks_open", asks.c.id, sqlite_where=_is_waiting, postgresql_where=_is_waiting)

rules = Table(
    "rules",
    metadata,
    Column("id", Text, primary_key=True),
    Column("principal", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("session", Text),
    Column("workspace", Text),
    Column("permission", Text, nullable=False),
    Column("pattern", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("ask", Text),
    Column("created_by", Text),
    Column("created_at", BigInteger, nullable=False),
)

tools = Table(
    "tools",
    metadata,
    Column("principal", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("definition", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("principal", "name"),
)

mcp_servers = Table(
    "mcp_servers",
    metadata,
    Column("principal", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("definition", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("principal", "name"),
)

mcp_catalogues = Table(
    "mcp_catalogues",
    metadata,
    Column("principal", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("principal", "server"),
)

mcp_tokens = Table(
    "mcp_tokens",
    metadata,
    Column("principal", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("issuer", Text, nullable=False),
    Column("value", LargeBinary, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("principal", "server", "issuer"),
)

counters = Table(
    "counters",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)
