"""Known failures by the signs of a report: each with its nearest innocent twin; what is denied or told as an aftermath; numbers that change."""

import pytest

from detectors.failures.failure_catalogue import FailureCatalogue, FailureOrigin, FailureRepair, KnownFailure, SignRule
from detectors.failures.report_signs import ReportSign, SignTable
from detectors.failures.reported_changes import NAMES, printed_changes, told_changes

SIGNS = SignTable.load()
CATALOGUE = FailureCatalogue.load()


def names(line: str) -> set[str]:
    return {sign.name for sign in SIGNS.read(1, line)}


def test_every_sign_that_a_rule_asks_for_is_one_that_somebody_gives() -> None:
    asked = {name for failure in CATALOGUE.failures for rule in failure.shown_by for name in rule.names if "." not in name}
    assert asked - SIGNS.names - NAMES == set()


def test_every_row_is_used_and_every_rival_is_known() -> None:
    asked = {name for failure in CATALOGUE.failures for rule in failure.shown_by for name in rule.names}
    assert (SIGNS.names | NAMES) - asked == set()
    assert {rival for failure in CATALOGUE.failures for rival, _ in failure.rivals} <= CATALOGUE.by_name.keys()
    assert len(CATALOGUE.by_name) == len(CATALOGUE.failures)


def test_only_what_hardware_says_of_itself_evicts() -> None:
    assert {failure.origin for failure in CATALOGUE.failures if failure.repair is FailureRepair.EVICT} == {FailureOrigin.HARDWARE}
    symptoms = {"hang", "crash", "collective_timeout", "watchdog_stuck", "peer_closed", "connection_refused", "slow", "exception", "gpu_out_of_memory", "not_finite"}
    for failure in CATALOGUE.failures:
        if failure.repair is FailureRepair.EVICT:
            assert not any(set(rule.names) <= symptoms for rule in failure.shown_by), failure.name


@pytest.mark.parametrize(
    ("line", "sign"),
    [
        ("ECC errors on node 7", "says_ecc"), ("no ECC errors on node 7", ""), ("we ruled out an ECC error", ""), ("0 ECC errors", ""),
        ("the job hangs at eval", "hang"), ("posix_fallocate failed; tests hang afterwards", ""), ("num_workers > 0 hangs", "hang"),
        ("5 hosts down together", "says_node_down"), ("hang at 100B, nodes lost afterwards", "!says_node_down"), ("node-7 went down", "says_node_down"), ("the server had to be rebooted by us", ""),
        ("NVRM: Xid (PCI:0000:48:00): 13, pid=1, Graphics Exception", "xid_of_program"), ("NVRM: Xid (PCI:0000:48:00): 13, pid=1", "!xid_memory"), ("XID 94 error", "xid_contained_memory"),
        ("NET/IB : Got completion from peer 10.0.0.1<1> with status=12 opcode=0 len=0 vendor err 129 (Send)", "ib_retry_exceeded"),
        ("NET/IB: Got completion from peer 10.0.0.1<1> with status=IBV_WC_LOC_PROT_ERR(4) opcode=0", "ib_protection"), ("status=12 opcode=0", "!ib_retry_exceeded"),
        ("it is not resuming in the same state", "at_resume"), ("number of nan iterations:   0", "!not_finite"),
    ],
)  # fmt: skip
def test_a_line_is_a_sign_unless_it_denies_it_or_tells_an_aftermath(line: str, sign: str) -> None:
    found = names(line)
    wanted, unwanted = (sign, "") if sign and not sign.startswith("!") else ("", sign[1:])
    assert not wanted or wanted in found
    if unwanted:
        assert unwanted not in found
    elif not wanted:
        assert found.isdisjoint({"says_ecc", "hang", "says_node_down"})


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("iteration time 105.2 -> 111 s", ["iteration_time_rises"]), ("iteration time 105.2 -> 105.4 s", []), ("149 -> 141 TFLOPs", ["throughput_falls"]), ("throughput +2 %", ["throughput_rises"]),
        ("lm loss 2.20 -> 5.10", ["loss_rises"]), ("lm loss 5.10 -> 2.20", []), ("loss scale 65536 -> 4096", ["loss_scale_falls"]), ("grad norm 0.24 -> 960", ["grad_norm_rises"]),
        ("5 % slower", ["throughput_falls"]), ("NNODES 4 -> 8", []), ("upgraded from 2.4 to 2.6", []), ("loss 0 -> 1", []),
    ],
)  # fmt: skip
def test_numbers_that_somebody_tells(line: str, names: list[str]) -> None:
    assert [sign.name for sign in told_changes(1, line)] == names


def test_values_that_training_prints() -> None:
    def of(quantity: str, *values: float) -> list[str]:
        return [sign.name for sign in printed_changes({quantity: list(enumerate(values, 1))}, {})]

    assert of("loss", 2.2, 2.2, 2.3, 5.1, 3.0, 2.9) == ["loss_rises"]
    assert of("loss", 2.2, 2.2, 2.3, 5.1, 2.3, 2.2) == ["loss_rises", "recovered"]
    assert of("loss", 2.2, 2.21, 2.19, 2.2) == []
    assert of("loss", 9.0, 4.0, 3.0, 2.5, 3.2, 2.2) == [], "a loss that comes down from its start"
    assert of("loss_scale", 2.0**32, 2.0**31, 2.0**30, 2.0**29, 2.0**16) == [], "a loss scaler that comes down from its start"
    assert of("iteration_time", 105.2, 105.2, 106.3, 110.2, 111.1) == ["iteration_time_rises"]
    assert of("iteration_time", 105.2, 120.0, 105.3, 105.1, 105.2) == []
    assert of("grad_norm", 0.0, 0.0, 0.0, 9.0) == []
    assert of("loss_scale", 65536.0, 65536.0, 8192.0, 4096.0) == ["loss_scale_falls"]


def failure(name: str, **rule: object) -> KnownFailure:
    row = SignRule(**{"all": ("a",), "weight": 0.5, **rule})  # type: ignore[arg-type]
    return KnownFailure(name=name, title=name, origin=FailureOrigin.PROGRAM, repair=FailureRepair.RESTART, cause="c", remedy="r", source="s", shown_by=(row,))


def signs(*names: str) -> list[ReportSign]:
    return [ReportSign(name, number, name) for number, name in enumerate(names, 1)]


def test_rules_add_up_and_the_upper_row_counts_of_equal_ones() -> None:
    catalogue = FailureCatalogue([failure("weak", all=("b",), weight=0.4), failure("first", all=("c",)), failure("second", all=("d|x",))])
    assert [each.failure.name for each in catalogue.suspected(signs("d", "c", "b"))] == ["first", "second", "weak"]
    twice = KnownFailure(**{**{name: getattr(failure("twice"), name) for name in KnownFailure.__struct_fields__}, "shown_by": (SignRule(all=("a",), weight=0.5), SignRule(all=("b",), weight=0.4))})
    assert FailureCatalogue([twice]).suspected(signs("a", "b"))[0].weight == 0.7


def test_a_rule_may_exclude_and_ask_for_an_order() -> None:
    assert FailureCatalogue([failure("f", unless=("b",))]).suspected(signs("a", "b")) == ()
    ordered = FailureCatalogue([failure("f", all=("a", "b"), in_order=True)])
    assert len(ordered.suspected(signs("a", "b"))) == 1
    assert ordered.suspected(signs("b", "a")) == ()


def test_what_nothing_else_speaks_for_than_for_a_stronger_one_is_left_out() -> None:
    catalogue = FailureCatalogue([failure("cause", all=("a", "b"), weight=0.7), failure("symptom")])
    assert [each.failure.name for each in catalogue.suspected(signs("a", "b"))] == ["cause"]
    assert catalogue.suspected(signs("c")) == ()


@pytest.mark.parametrize(
    "line",
    [
        "| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |", "    ECC Errors", "        DRAM Uncorrectable            : 0", "        Uncorrectable Error               : 0",
        "ECC Mode: enabled", "corrected ECC errors on GPU 3: 12", "maybe a hardware failure?", "we thought of a bad GPU, but it was the data", "not a hardware problem", "whether one node is bad",
        "training on GPU 3 crashed", "the process on node 7 died", "all jobs on the node crashed", "GPU memory allocation failed", "GPU failed to initialize", "CPU offload failed to allocate", "the NIC failed to bind",
        "OSError: [Errno 112] Host is down", "node 3 lost the connection to storage", "the server had to be rebooted by us", "the error on both nodes is gone", "the sanity check fails", "disk full on node 3",
        "mce: CPU0: Thermal monitoring enabled", "pcieport 0000:00:01.0: AER: Corrected error received", "nodes lost afterwards", "the job was moved to other nodes", "NVLink is enabled", "<inactive>", "after two nodes were replaced it hangs again",
        "nvidia-nvswitch2: open (major=510)", "NVRM: Xid (PCI:0000:48:00): 31, pid=1, MMU Fault", "NVRM: Xid (PCI:0000:95:00): 45, pid=1",
    ],
)  # fmt: skip
def test_twin_what_says_nothing_against_a_machine_evicts_nobody(line: str) -> None:
    found = CATALOGUE.suspected(tuple(SIGNS.read(1, line)))
    assert not any(each.failure.repair is FailureRepair.EVICT for each in found), [(each.failure.name, each.signs) for each in found]
