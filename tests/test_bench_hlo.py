"""The reader of XLA's programs, on a program written for the test in XLA's words."""

import re
from pathlib import Path

import pytest

from benchmarks import hlo, hlo_costs
from benchmarks.device_programs import RATES, TARGETS

TEXT = (Path(__file__).parent / "step.hlo").read_text()
PROGRAM = hlo.parse(TEXT)
EIGHT = "%x = f32[8]{0} parameter(0)"
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


def program_of(*lines: str) -> hlo.Program:
    """Its entry has these lines."""
    return hlo.parse("\n  ".join(["ENTRY %main (x: f32[8]) -> f32[8] {", *lines]) + "\n}\n")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ('%f = f32[8]{0} custom-call(%x), custom_call_target="__cublas$gemm"', hlo.LIBRARY),
        ('%f = f32[8]{0} custom-call(%x), custom_call_target="__gpu$xla.gpu.triton"', hlo.TRITON),
        ('%f = f32[8]{0} custom-call(%x), custom_call_target="something"', hlo.OTHER),
        ("%f = (f32[8]{0}, token[]) recv(%x), channel_id=1, is_host_transfer=true", hlo.HOST),
        ("%f = token[] outfeed(%x, %x)", hlo.HOST),
        ("%f = f32[8]{0:S(5)} copy(%x)", hlo.HOST),
        ("%f = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(%x)", hlo.COPY),
        ("%f = f32[8]{0} collective-permute(%x), source_target_pairs={{0,1}}", hlo.COLLECTIVE),
        ("%f = ((f32[8]{0}), f32[8]{0}) fusion-start(%x), kind=kLoop, calls=%unknown", hlo.FUSION),
        ('%f = ((f32[8]{0}), f32[8]{0}) custom-call-start(%x), custom_call_target="__cublas$gemm"', hlo.LIBRARY),
        ("%f = f32[8]{0} sort(%x), to_apply=%add", hlo.FUSION),
        ("%f = f32[8]{0} all-reduce-done(%x)", None),
        ("%f = f32[8]{0} bitcast(%x)", None),
    ],
)
def test_what_an_operation_is(line, kind):
    program = program_of(EIGHT, line)
    assert [launch.kind for launch in hlo.launches(program, "main")] == ([kind] if kind else [])


def test_bytes_of_what_is_sliced_are_those_of_the_slice():
    assert hlo_costs.moved(PROGRAM, FOUND["samples"]) == 2 * (2 * 4 * 4) + 4  # read, written, and the index; not all 1600 bytes
    assert hlo_costs.moved(PROGRAM, FOUND["turned"]) == 2 * 8 * 4
    assert hlo_costs.moved(PROGRAM, FOUND["conv"]) == (6 + 16 + 32) * 4


def test_bytes_of_a_row_that_is_filed_in_a_table_are_those_of_the_row():
    filing = program_of(EIGHT, "%f = f32[66]{0} fusion(%x, %x, %x), kind=kLoop, calls=%filing")
    program = hlo.Program(PROGRAM.computations | filing.computations, "main")
    [launch] = hlo.launches(program, "main")
    assert hlo_costs.moved(program, launch) == 4 + 4 + 4  # the index, the row read, the row written


def test_operations_and_precision_of_products():
    [dot] = hlo_costs.products(PROGRAM, FOUND["product"])
    assert dot == hlo_costs.Product(2 * 2 * 8 * 4, True, "jit(epoch)/density/dot_general")
    [convolution] = hlo_costs.products(PROGRAM, FOUND["conv"])
    assert (convolution.operations, convolution.full) == (2 * 6 * 32 // 4, False), "no precision was asked for: TF32"
    assert hlo_costs.products(PROGRAM, FOUND["turned"]) == []


@pytest.mark.parametrize(
    ("attributes", "full"),
    [
        ("operand_precision={highest,highest}", True),
        ("operand_precision={highest,highest,default}", True),
        ("operand_precision={default,high}", False),
        ("algorithm=dot_tf32_tf32_f32", False),
        ("algorithm=dot_f32_f32_f32", True),
        ('backend_config={"precision_config":{"operand_precision":["HIGHEST","HIGHEST"],"algorithm":"ALG_UNSET"}}', True),
        ('backend_config={"precision_config":{"operand_precision":["DEFAULT","DEFAULT"],"algorithm":"ALG_UNSET"}}', False),
        ("", False),
    ],
)
def test_which_products_may_be_computed_in_tf32(attributes, full):
    square = "%x = f32[2,2]{1,0} parameter(0)"
    program = program_of(square, f"%d = f32[2,2]{{1,0}} dot(%x, %x), lhs_contracting_dims={{1}}, {attributes}")
    [launch] = hlo.launches(program, "main")
    assert [product.full for product in hlo_costs.products(program, launch)] == [full]


TRITON_ALL_REDUCE = """HloModule jit_step, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%fused_psum.clone (param_0: f32[493493]) -> f32[493493] {
  %param_0 = f32[493493]{0} parameter(0)
  ROOT %psum = f32[493493]{0} all-reduce(%param_0), channel_id=1, use_global_device_ids=true, to_apply=%add, \
backend_config={"collective_backend_config":{"is_sync":false,"kernel_strategy":"KERNEL_STRATEGY_TRITON_TWO_SHOT"}}
}

ENTRY %main (x: f32[493493]) -> f32[493493] {
  %x = f32[493493]{0} parameter(0)
  %fusion-start = ((f32[493493]{0}), f32[493493]{0}) fusion-start(%x), kind=kCustom, calls=%fused_psum.clone, \
metadata={op_name="jit(step)/reduction/psum"}, \
backend_config={"fusion_backend_config":{"kind":"__triton_collective","block_level_fusion_config":{"num_warps":"16"}}}
  ROOT %fusion-done = f32[493493]{0} fusion-done(%fusion-start), \
backend_config={"fusion_backend_config":{"kind":"__triton_collective"}}
}
"""
"""The all-reduce of JAX 0.12 for GPUs with NVLink, shortened: a Triton kernel, started as a fusion and awaited later."""


def test_an_all_reduce_that_xla_writes_as_a_triton_kernel_is_a_meeting_of_the_devices():
    program = hlo.parse(TRITON_ALL_REDUCE)
    [launch] = hlo.launches(program, "main")
    assert (launch.instruction.name, launch.kind) == ("fusion-start", hlo.COLLECTIVE)
    assert hlo_costs.met(program, launch) == ("all-reduce", 4 * 493_493)


NVLINKS = {"a100": ["12"], "h100": ["18"], "h200": ["18"], "t4": []}
"""The links of a GPU by NVIDIA's data sheets. A T4 has PCI Express only."""


def test_the_described_gpus_have_their_nvlinks():
    """Otherwise XLA compiles another all-reduce for them than for those that are there."""
    found = {
        path.stem: re.findall(r"\n  device_interconnect_info { active_links: (\d+) }\n", path.read_text(encoding="utf-8"))
        for path in TARGETS.glob("*.txtpb")
    }
    assert found == NVLINKS
    assert found.keys() == RATES.keys()


def test_what_a_library_s_all_reduce_is_given():
    assert hlo_costs.met(PROGRAM, FOUND["start"]) == ("all-reduce", 8 * 4)


@pytest.mark.parametrize(("attributes", "unordered"), [("unique_indices=true, to_apply=%add", False), ("to_apply=%add", True)])
def test_a_scatter_whose_places_may_meet_adds_in_no_order(attributes, unordered):
    program = program_of(EIGHT, f"%s = f32[8]{{0}} scatter(%x, %x, %x), {attributes}")
    assert [hlo_costs.unordered(program, launch) for launch in hlo.launches(program, "main")] == [unordered]
