"""Asks, rules and tools written at run time; settings of sessions, bounds of keys, and the key of a call."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("keys", sa.Column("bounds", sa.Text(), nullable=True))
    for name in ("workspace", "approval", "rules", "is_trusted", "network_policy", "env", "labels", "updated_at"):
        if name in ("is_trusted", "updated_at"):
            op.add_column("sessions", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
        else:
            op.add_column("sessions", sa.Column(name, sa.Text(), nullable=True))
    op.add_column("calls", sa.Column("key", sa.Text(), nullable=True))
    op.add_column("calls", sa.Column("deadline", sa.BigInteger(), nullable=True))
    _make_asks()
    op.create_table(
        "rules",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("session", sa.Text(), nullable=True),
        sa.Column("workspace", sa.Text(), nullable=True),
        sa.Column("permission", sa.Text(), nullable=False),
        sa.Column("pattern", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("ask", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "tools",
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("principal", "name"),
    )


def _make_asks() -> None:
    op.create_table(
        "asks",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("call", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
    )
    op.create_index("asks_by_call", "asks", ["call"], unique=False)
    op.create_index("asks_by_principal", "asks", ["principal", "id"], unique=False)
    is_open = sa.text("status = 'open'")
    op.create_index("asks_open", "asks", ["id"], unique=False, sqlite_where=is_open, postgresql_where=is_open)
