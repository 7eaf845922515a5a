"""How alembic reaches the database: the caller hands the URL in; everything is one transaction."""

from alembic import context
from sqlalchemy import NullPool, create_engine

from app.store.tables import metadata

engine = create_engine(context.config.attributes["url"], poolclass=NullPool)
with engine.connect() as connection:
    connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
