"""Xid codes and what the vendor advises."""

import pytest

from eagle_eye.types import Severity
from eagle_eye.xids import XIDS, qualifier_of, xid, xid_of_status


@pytest.mark.parametrize(
    ("severity", "codes"),
    [
        (Severity.SEV1, (48, 62, 64, 74, 79, 95, 119, 120, 140)),
        (Severity.SEV2, (13, 31, 39, 40, 69, 75, 94, 135)),
        (Severity.INFO, (33, 43, 45, 61, 63, 68, 92, 144, 145, 149, 150, 154, 156, 162)),
    ],
)
def test_severity_of_an_xid_follows_the_vendors_advice(severity: Severity, codes: tuple[int, ...]) -> None:
    assert {code: XIDS[code].severity for code in codes} == dict.fromkeys(codes, severity)


def test_an_xid_that_nobody_knows_informs_only() -> None:
    assert xid(9999).severity is Severity.INFO


@pytest.mark.parametrize(
    ("code", "rest", "qualifier", "severity"),
    [
        (145, "RLW_REMAP Fatal XC0 i0 Link 00 (0x00000004 0x00000040)", "fatal", Severity.SEV1),
        (145, "pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)", "nonfatal", Severity.INFO),
        (149, "NETIR_LINK_EVT Link Fatal XC0 i0 Link -1", "fatal", Severity.SEV1),
        (146, "TLW_CTRL Non-fatal XC0 i0 Link 00", "nonfatal", Severity.INFO),
        (144, "SAW_MVB XC0 i0 Link 0", "", Severity.INFO),
        (154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "reset", Severity.SEV1),
        (154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "reboot", Severity.SEV1),
        (154, "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "drain-and-reset", Severity.SEV1),
        (154, "GPU recovery action changed from 0x4 (Drain and Reset) to 0x0 (None)", "none", Severity.INFO),
        (154, "GPU recovery action changed from 0x0 (None) to 0x99 (Unheard Of)", "", Severity.INFO),
        (79, "a fatal word of another code", "", Severity.SEV1),
    ],
)
def test_where_the_code_alone_says_nothing_the_rest_of_the_line_decides(code: int, rest: str, qualifier: str, severity: Severity) -> None:
    assert qualifier_of(code, rest) == qualifier
    row = xid(code, qualifier)
    assert row.severity is severity
    assert xid_of_status(row.status) == row


@pytest.mark.parametrize("status", ["", "xid", "xid x", "xid 79 a b", "ecc error", "xid 99999999999999999999"])
def test_what_is_no_status_of_an_xid_is_none_or_unknown(status: str) -> None:
    row = xid_of_status(status)
    assert row is None or row.severity is Severity.INFO
