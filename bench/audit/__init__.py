"""Audits of many networks: one table, one page, and a script for each broken law."""
