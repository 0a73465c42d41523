"""What the connections of a process have carried, as its kernel tells."""

import os
import socket
import struct

from eagle_eye.activity.tcp_flow import ATTRIBUTES_AT, BYTES_AT, HEAD, carried, messages, tcp_bytes

SENT = 300_000


def test_what_a_process_sends_and_receives_counts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        there, _ = server.accept()
        with there:
            before = tcp_bytes(os.getpid())
            client.sendall(bytes(SENT))
            left = SENT
            while left:
                left -= len(there.recv(left))
            assert tcp_bytes(os.getpid()) - before >= SENT


def test_a_process_that_is_gone_has_none() -> None:
    assert tcp_bytes(0x7FFFFFFF) == 0


def test_a_kernel_that_counts_no_bytes_and_torn_answers_tell_nothing() -> None:
    body = bytes(68) + struct.pack("=I", 77)
    info = bytes(BYTES_AT) + struct.pack("=QQ", 40, 2)
    assert carried(body) == (77, 0)
    assert carried(body + struct.pack("=HH", 4 + BYTES_AT, 2) + bytes(BYTES_AT)) == (77, 0)
    assert carried(body + struct.pack("=HH", 5, 8) + bytes(4) + struct.pack("=HH", 4 + len(info), 2) + info) == (77, 42)
    assert carried(body + bytes(40)) == (77, 0), "a length of 0 ends"
    assert len(body) == ATTRIBUTES_AT
    assert [kind for kind, _ in messages(HEAD.pack(0, 3, 0, 0, 0) + HEAD.pack(16, 20, 0, 0, 0) + bytes(7))] == [3, 20]
