"""What it costs: bytes counted exactly, time measured beside peers and beside a bare socket."""
