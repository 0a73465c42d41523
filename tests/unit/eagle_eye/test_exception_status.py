"""Whose the words of the network are: of a peer's end, or of the script and the services that it asks."""

import socket
import traceback

import pytest

from eagle_eye.exception_status import printed_exceptions, printed_lines, status_raised

PACKAGES = "/venv/lib/python3.11/site-packages"


def raised_in(*files: str) -> str:
    """A traceback, the innermost frame last."""
    return "".join(f'  File "{file}", line 212, in load\n    call()\n' for file in files)


IN_THE_SCRIPT = raised_in("/home/ada/train.py")
BY_A_CLIENT = raised_in("/home/ada/train.py", f"{PACKAGES}/urllib3/connection.py", "/usr/lib/python3.11/socket.py")
IN_TORCH = raised_in("/home/ada/train.py", f"{PACKAGES}/torch/distributed/c10d_logger.py", f"{PACKAGES}/torch/distributed/distributed_c10d.py")
IN_OURS = raised_in("/home/ada/train.py", f"{PACKAGES}/eagle_eye/training/elastic/process_group/gloo.py", "/usr/lib/python3.11/socket.py")
IN_BACKWARD = raised_in("/home/ada/train.py", f"{PACKAGES}/torch/_tensor.py", f"{PACKAGES}/torch/autograd/graph.py")
SAVED_BY_TORCH = raised_in("/home/ada/train.py", f"{PACKAGES}/torch/distributed/checkpoint/filesystem.py", "/usr/lib/python3.11/ssl.py")
CALLED_BY_OURS = raised_in(f"{PACKAGES}/eagle_eye/training/elastic/worker.py", "/home/ada/data.py", f"{PACKAGES}/requests/api.py")


@pytest.mark.parametrize("where", [IN_THE_SCRIPT, BY_A_CLIENT, SAVED_BY_TORCH, CALLED_BY_OURS, IN_BACKWARD])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("KeyError", "'infiniband'"),
        ("ValueError", "watchdog_interval must be positive"),
        ("ValueError", "column 'broken pipe' is missing"),
        ("ConnectionRefusedError", "[Errno 111] Connection refused"),
        ("TimeoutError", "The read operation timed out"),
        ("gaierror", "[Errno -3] Temporary failure in name resolution"),
        ("RuntimeError", "the socket timeout of the loader is too short"),
        ("NewConnectionError", "Failed to establish a new connection: [Errno 113] No route to host"),
    ],
)
def test_words_of_the_network_from_elsewhere_than_the_exchange_are_the_programs(kind: str, message: str, where: str) -> None:
    assert status_raised(kind, message, where).name == "other software error"


@pytest.mark.parametrize(("where", "symptom"), [(IN_THE_SCRIPT, True), (BY_A_CLIENT, False), (SAVED_BY_TORCH, False)])
@pytest.mark.parametrize("kind", ["ConnectionResetError", "BrokenPipeError"])
def test_a_socket_of_the_scripts_own_may_lead_to_a_peer_a_librarys_leads_to_a_service(kind: str, where: str, symptom: bool) -> None:
    assert status_raised(kind, "[Errno 104] Connection reset by peer", where).symptom == symptom


@pytest.mark.parametrize("kind", ["ValueError", "KeyError", "NotImplementedError", "requests.exceptions.ConnectionError", "botocore.exceptions.EndpointConnectionError"])
def test_a_type_that_tells_of_no_peer_needs_no_frame(kind: str) -> None:
    assert status_raised(kind, "a batch\nConnection closed by peer", "").name == "other software error"


@pytest.mark.parametrize(
    ("kind", "message", "where", "status"),
    [
        ("RuntimeError", "Connection closed by peer", IN_TORCH, "connection refused or reset"),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", IN_OURS, "connection refused or reset"),
        ("TimeoutError", "timed out waiting 8000ms", IN_OURS, "nccl timeout"),
        ("DistNetworkError", "The client socket has timed out", IN_THE_SCRIPT, "connection refused or reset"),
        ("torch.distributed.DistStoreError", "wait timeout after 300000ms", IN_THE_SCRIPT, "nccl timeout"),
        ("DistBackendError", "NCCL error in: NCCLUtils.hpp:268, remote process exited or there was a network error", IN_BACKWARD, "connection refused or reset"),
        ("RuntimeError", "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:4", IN_BACKWARD, "connection refused or reset"),
        ("RuntimeError", "[pair.cc:537] Read error [127.0.0.1]:4: Connection reset by peer", IN_THE_SCRIPT, "connection refused or reset"),
        ("RuntimeError", "[../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete", IN_THE_SCRIPT, "nccl timeout"),
        ("RuntimeError", "Connection closed by peer", "", "connection refused or reset"),
        ("RuntimeError", "Connection closed by peer", IN_THE_SCRIPT, "connection refused or reset"),
    ],
)
def test_twin_what_the_exchange_tells_of_a_peer_is_a_symptom(kind: str, message: str, where: str, status: str) -> None:
    told = status_raised(kind, message, where)
    assert (told.name, told.symptom) == (status, True)


def test_the_users_own_line_is_enough_where_no_traceback_is_kept() -> None:
    assert not status_raised("ConnectionRefusedError", "[Errno 111] Connection refused", "", "train.py:212 in load").symptom
    assert status_raised("RuntimeError", "[pair.cc:553] Connection closed by peer", "", "train.py:212 in step").symptom


def test_a_traceback_that_ends_in_pythons_own_files_is_judged_by_who_called_them() -> None:
    error: OSError | None = None
    try:
        socket.create_connection(("127.0.0.1", 1), timeout=0.5)  # nobody listens there
    except OSError as refused:
        error = refused
    assert error is not None
    told = "".join(traceback.format_tb(error.__traceback__))
    assert not status_raised(type(error).__qualname__, "[Errno 111] Connection refused", told).symptom


def test_twin_hardware_is_named_wherever_it_is_raised() -> None:
    assert status_raised("RuntimeError", "CUDA error: uncorrectable ECC error encountered", IN_THE_SCRIPT).name == "ecc error"


def test_a_printed_exception_is_judged_in_the_same_way() -> None:
    printed = f"Traceback (most recent call last):\n{BY_A_CLIENT}ConnectionRefusedError: [Errno 111] Connection refused\n"
    ranked = "".join(f"[rank3]: {line}\n" for line in f"Traceback (most recent call last):\n{IN_TORCH}RuntimeError: Connection closed by peer".splitlines())
    bare = "ConnectionRefusedError: [Errno 111] Connection refused\n"
    told = printed_exceptions(printed_lines(printed + ranked + bare))
    assert [status.name for status in told] == ["other software error", "connection refused or reset", "connection refused or reset"]
