"""The control channel over gRPC: sessions of launchers and agents with a leader or coordinator, and the calls of operators."""
