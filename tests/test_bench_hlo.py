"""The readers of XLA's programs and of its lists of commands, on texts written for the test in XLA's words."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks import hlo, hlo_costs, thunks

TEXT = (Path(__file__).parent / "step.hlo").read_text()
PROGRAM = hlo.parse(TEXT)
FOUND = {launch.instruction.name: launch for launch in hlo.launches(PROGRAM, "step_body")}


def test_a_step_is_the_body_of_the_loop_over_the_steps():
    assert hlo.step(PROGRAM, 66) == "step_body"
    assert hlo.step(PROGRAM, 1) == "main"
    with pytest.raises(ValueError, match=r"a program of 7 steps must have one loop of so many; got loops of \[66, 3, None\]"):
        hlo.step(PROGRAM, 7)


def test_launches_have_kinds_and_loops_within_are_counted_as_often_as_they_run():
    kinds = {name: launch.kind for name, launch in FOUND.items()}
    assert kinds == {
        "samples": hlo.FUSION,
        "product": hlo.TRITON,
        "conv": hlo.LIBRARY,
        "turned": hlo.COPY,
        "start": hlo.COLLECTIVE,
        "doubled": hlo.FUSION,
        "told": hlo.HOST,
    }
    doubled = [x.times for x in hlo.launches(PROGRAM, "step_body") if x.instruction.name == "doubled"]
    assert doubled == [3, 1], "three known passes, and a loop of unknown length once"
    assert [loop.name for loop in hlo.open_loops(PROGRAM, "step_body")] == ["open"]


def test_operations_and_precision_of_products():
    [dot] = hlo_costs.products(PROGRAM, FOUND["product"])
    assert dot == hlo_costs.Product(2 * 2 * 8 * 4, True, "jit(epoch)/density/dot_general")
    [convolution] = hlo_costs.products(PROGRAM, FOUND["conv"])
    assert (convolution.operations, convolution.full) == (2 * 6 * 32 // 4, False), "no precision was asked for: TF32"
    assert hlo_costs.products(PROGRAM, FOUND["turned"]) == []
    assert hlo_costs.moved(PROGRAM, FOUND["samples"]) == 2 * (2 * 4 * 4) + 4  # read, written, and the index; not all 1600 bytes
    assert hlo_costs.met(PROGRAM, FOUND["start"]) == ("all-reduce", 8 * 4)


OUTSIDE = """\
001: kCopy         [source       | next=003 (2)] kCopy
003: kWhile        [prev=002 (1) | sink        ]
condition:
    004: kCustomKernel [source | sink] loop_compare_fusion grid: [1, 1, 1] threads: [1, 1, 1]
  body:
    000: kCommandBuffer [source       | next=060 (1)]
        005: kCopy         [source        | next=006 (1)] kCopy
        006: kCustomKernel [prev=005 (1)  | sink        ] loop_transpose_fusion grid: [1, 1, 1] threads: [5, 1, 1]
    007: kWhile         [prev=000 (1) | next=060 (1)]
condition:
        008: kCustomKernel [source | sink] wrapped_compare grid: [1, 1, 1] threads: [1, 1, 1]
      body:
        009: kCollectivePermute [source       | sink        ] kCollectivePermute
    060: kAsyncStart    [prev=000 (1) | next=000 (4)] stream=communication_stream[0], async_id=60
        059: kAllReduce [source | sink] kAllReduce
    063: kAsyncDone     [source       | sink        ] async_id=60
    000: kCommandBuffer [prev=061 (3) | sink        ]
        064: kCustomKernel [source       | sink        ] loop_add_fusion grid: [1, 1, 1] threads: [5, 1, 1]
070: kCopy         [source       | sink        ] kCopy
"""


def test_a_graph_is_one_command_and_so_is_what_is_started_and_awaited():
    found = Counter(thunks.commands(thunks.step(thunks.parse(OUTSIDE), 5)))
    assert found == {"kCommandBuffer": 2, "kCollectivePermute": 1, "kAsyncStart": 1}
