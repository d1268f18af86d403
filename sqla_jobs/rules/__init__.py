"""Pure decisions: no SQLAlchemy, no I/O, no clock, and no random number of their own."""
