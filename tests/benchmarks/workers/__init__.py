"""The processes of a benchmark: servers and nodes, ours and the peers'. See ``fleet``."""
