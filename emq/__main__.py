"""`python -m emq` is the `emq` command."""

from .cli import main

raise SystemExit(main())
