"""The reader of XLA's list of commands, on lists in XLA's words."""

from collections import Counter

import pytest

from benchmarks import thunks

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

INSIDE = """\
000: kCommandBuffer [source | sink]
    004: kWhile        [prev=003 (1) | sink        ]
condition:
        005: kCustomKernel [source | sink] loop_compare_fusion grid: [1, 1, 1] threads: [1, 1, 1]
      body:
        006: kCustomKernel [source       | sink        ] loop_add_fusion grid: [1, 1, 1] threads: [1, 1, 1]
"""


def commands(text: str, steps: int) -> Counter[str]:
    return Counter(thunks.commands(thunks.step(thunks.parse(text), steps)))


def test_a_graph_is_one_command_and_so_is_what_is_started_and_awaited():
    assert commands(OUTSIDE, 5) == {"kCommandBuffer": 2, "kCollectivePermute": 1, "kAsyncStart": 1}


def test_a_program_of_one_step_is_all_of_it():
    assert commands(OUTSIDE, 1) == {"kCommandBuffer": 2, "kCollectivePermute": 1, "kAsyncStart": 1, "kCopy": 2}


def test_a_step_of_a_loop_inside_a_graph_has_no_command():
    assert commands(INSIDE, 5) == {}
    assert commands(INSIDE, 1) == {"kCommandBuffer": 1}


def test_a_text_without_commands_is_an_error():
    with pytest.raises(ValueError, match="a list of XLA's commands must have an entry; got none"):
        thunks.parse("HloModule jit_epoch\n")
