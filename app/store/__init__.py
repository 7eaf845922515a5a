"""Floor 1, the memory: the only SQL. May import: core.

Rows go in and come out as the nouns of `core`; nobody else sees a row. All
writing goes through the one writer (`writer.py`); reads use the async engine.
Statements are said once, in SQLAlchemy Core, and must compile for SQLite and
PostgreSQL. No decision is taken here.
"""
