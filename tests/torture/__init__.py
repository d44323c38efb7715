"""An attack on the library: kills, damaged files, full disks, hostile inputs (`python -m tests.torture`)."""
