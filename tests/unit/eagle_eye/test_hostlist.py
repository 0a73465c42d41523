"""Hostlists as Slurm writes them, and what is none."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_eye.hostlist import MOST_HOSTS, HostlistError, hosts_of


@pytest.mark.parametrize(
    ("expression", "hosts"),
    [
        ("", ()),
        ("gpu1", ("gpu1",)),
        ("gpu1, gpu2,gpu1", ("gpu1", "gpu2")),
        ("node[8-10,012]-ib", ("node8-ib", "node9-ib", "node10-ib", "node012-ib")),
        ("node[098-101]", ("node098", "node099", "node100", "node101")),
        ("rack[1-2]-n[0-1],login", ("rack1-n0", "rack1-n1", "rack2-n0", "rack2-n1", "login")),
        ("rack-1-*", ("rack-1-*",)),
    ],
)
def test_every_name_that_an_expression_stands_for(expression: str, hosts: tuple[str, ...]) -> None:
    assert hosts_of(expression) == hosts


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("node[1-4", "not closed"),
        ("node1]", "not open"),
        ("node[1-[2]]", "within a bracket"),
        ("node[]", "no number"),
        ("node[a-c]", "no number"),
        ("node[4-1]", "its begin"),
        ("node1 node2", "put commas"),
        (f"node[0-{MOST_HOSTS}]", "more than"),
        ("a[0-999]b[0-999]c[0-999]d[0-999]", "more than"),
        ("n[0-999999999]", "more than"),
        (",".join(["n[0-60000]"] * 9000), "more than"),
        ("x" * (1 << 21), "characters"),
        ("x" * 401, "longer"),
    ],
)
def test_what_is_none_is_refused_with_the_reason_and_at_once(expression: str, reason: str) -> None:
    with pytest.raises(HostlistError, match=reason) as refused:
        hosts_of(expression)
    assert len(str(refused.value)) < 300


@settings(deadline=None)
@given(st.text(alphabet="n1-[],* 09x"))
def test_anything_is_a_hostlist_or_is_refused(expression: str) -> None:
    try:
        hosts = hosts_of(expression)
    except HostlistError:
        return
    assert len(set(hosts)) == len(hosts) <= MOST_HOSTS
