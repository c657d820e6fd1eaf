"""Suites of runs: plan and run them, keep what they measured, and make tables and figures from that."""
