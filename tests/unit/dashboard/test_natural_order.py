"""The order of workers, nodes and GPUs on the pages: as a person counts."""

import random

from dashboard.queries.job import _natural


def test_names_come_in_the_order_of_their_numbers_whatever_they_are():
    names = ["run/node-1/0", "run/node-2/0", "run/node-2/1", "run/node-10/0", "run/node-10/10", f"run/node-{'9' * 5000}/0", "run/node-²/0", "run/node-x/0", "run/node-٣/0"]
    shuffled = names.copy()
    random.Random(1).shuffle(shuffled)
    assert sorted(shuffled, key=_natural)[:6] == names[:6]
    assert sorted(["b007", "b7", "b08"], key=_natural) == ["b007", "b7", "b08"]
