"""kill -9 of server, agents and launchers in the middle of incidents and heals."""
