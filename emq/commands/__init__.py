"""The subcommands of `emq`, a module for each group of them.

A module is imported when one of its commands is called. It has two functions: `configure(name,
command)` gives a command's parser its arguments, an example and, as `run`, what does it.
"""
