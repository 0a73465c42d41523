"""What a control server decides before anybody has called it."""

import pytest

from eagle_eye.errors import ControlError
from eagle_eye.rpc.control_server import ControlServer
from fakes.control_channel import Leader


@pytest.mark.parametrize("address", ["0.0.0.0:0", "10.0.0.1:7000", "[::]:0", "node-a:7000"])
def test_a_server_without_tls_stays_on_this_machine(address: str) -> None:
    with pytest.raises(ControlError, match="can be reached from other machines"):
        ControlServer(Leader.__new__(Leader), address, term=1)


def test_the_beat_slows_down_as_the_cluster_grows() -> None:
    server = ControlServer(Leader.__new__(Leader), term=1, heartbeat_s=0.5, lease_s=3.0)
    assert (server.heartbeat.heartbeat_s, server.heartbeat.lease_s) == (0.5, 3.0)
    server._sessions = dict.fromkeys([("agent", str(number), "") for number in range(20_000)])  # type: ignore[arg-type]
    assert (server.heartbeat.heartbeat_s, server.heartbeat.lease_s) == (10.0, 60.0)
