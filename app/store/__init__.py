"""Layer 1: the database. The only package that runs SQL. May import: core.

Rows go in and come out as the types of `core`. All writes go through the one writer (`writer.py`); reads use the async
engine. Statements are defined once, in SQLAlchemy Core, and must compile for SQLite and PostgreSQL. No decision is
taken here.
"""
