"""Measurements against raw SQL in the same run. Not part of the package."""
