"""Secrets, encrypted arguments, columns for retention, indexes for lists; Idempotency-Keys as digests only."""

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "secrets",
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("domains", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("principal", "name"),
    )
    op.add_column("calls", sa.Column("sealed", sa.LargeBinary(), nullable=True))
    is_failed = sa.text("status = 'error'")
    op.create_index("calls_failed", "calls", ["id"], unique=False, sqlite_where=is_failed, postgresql_where=is_failed)
    op.create_index("calls_by_tool", "calls", ["tool", "id"], unique=False)
    op.create_index("idempotency_keys_by_call", "idempotency_keys", ["call"], unique=False)
    counters = sa.table("counters", sa.column("name"), sa.column("value"))
    op.bulk_insert(counters, [{"name": "event_floor", "value": 0}])
    _digest_idempotency_keys()


def _digest_idempotency_keys() -> None:
    """Clients choose the key, which may be a secret; a digest is enough to compare it."""
    keys = sa.table("idempotency_keys", sa.column("principal"), sa.column("key"))
    db = op.get_bind()
    for principal, key in db.execute(sa.select(keys.c.principal, keys.c.key)).all():
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        mine = (keys.c.principal == principal, keys.c.key == key)
        db.execute(sa.update(keys).where(*mine).values(key=digest))
