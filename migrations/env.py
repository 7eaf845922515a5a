"""Alembic environment: the caller passes the URL; the whole upgrade is one transaction."""

from alembic import context
from sqlalchemy import NullPool, create_engine

from app.store.tables import metadata

engine = create_engine(context.config.attributes["url"], poolclass=NullPool, isolation_level="AUTOCOMMIT")
with engine.connect() as connection:
    connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # explicit, because the driver's own transactions do not include DDL
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
    context.run_migrations()
    connection.exec_driver_sql("COMMIT")
engine.dispose()
