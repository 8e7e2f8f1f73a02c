"""`python -m overland`, the same as `overland`."""

from overland.cli import main

main()
