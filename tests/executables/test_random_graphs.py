"""Random structured control flow traces the blocks that a walk in Python goes through.

``HALGPU_GRAPHS`` is how many graphs are tried: few here, since PoCL takes a while to build each; many elsewhere.
"""

from __future__ import annotations

import os

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import Graph, states, traces

EXAMPLES = int(os.environ.get("HALGPU_GRAPHS", "8"))


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 1000), min_size=40, max_size=250))
def test_random_graphs(numbers: list[int]) -> None:
    graph = Graph(numbers)
    wanted = traces(graph)
    found = graph.spirv().run(states(), output=np.full_like(wanted, -1))
    assert found.tolist() == wanted.tolist()
