"""Who is timed as a queue: this project, floors under it, and other queues.

`contenders` says who there is, `ours` and `peers` how each enqueues and works; `python -m
bench.queues` is one of its processes, and `host` the end that tells that process what to do.
"""
