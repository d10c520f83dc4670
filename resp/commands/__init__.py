"""The subcommands of `python -m resp`, a module each: `arguments(parser)`, `run(options)`."""
