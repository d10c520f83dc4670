"""The verbs, written once: each is a plan, which a `Queue` or an `AsyncQueue` runs.

A module is a plane: `jobs` (a job's life), `schedule` (due times), `recovery` (leases), `reads`.
All arguments are checked before the first command is yielded.
"""
