from benchmarks.limits import launched, least_bytes
from tests.small import small

PROGRAM = """HloModule jit_f

%fused (p: f32[2]) -> f32[2] {
  %p = f32[2] parameter(0)
  ROOT %a = f32[2] add(%p, %p)
}

%region_0.1_body (arg: (s32[], f32[2])) -> (s32[], f32[2]) {
  %arg = (s32[], f32[2]) parameter(0)
  %i = s32[] get-tuple-element(%arg), index=0
  %one = s32[] constant(1)
  %x = f32[2] get-tuple-element(%arg), index=1
  %next = s32[] add(%i, %one)
  %y = f32[2] fusion(%x), kind=kLoop, calls=%fused
  %z = f32[2] custom-call(%y), custom_call_target="gemm"
  ROOT %out = (s32[], f32[2]) tuple(%next, %z)
}

%region_1.2 (arg: (s32[], f32[2])) -> pred[] {
  %arg = (s32[], f32[2]) parameter(0)
  ROOT %less = pred[] compare(%arg, %arg), direction=LT
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %x = f32[2] parameter(0)
  ROOT %w = f32[2] while(%x), condition=%region_1.2, body=%region_0.1_body
}
"""


def test_launches_are_what_computes_in_the_largest_body():
    """An addition, a fusion and a call; parameters, constants and tuples are none."""
    assert launched(PROGRAM) == 3
    assert launched("") == 0
    at_once = "%y = f32[2] fusion(%x), kind=kLoop, calls=%fused"
    parted = "%y = f32[2] fusion-start(%x), kind=kCustom, calls=%fused\n  %w = f32[2] fusion-done(%y)"
    assert launched(PROGRAM.replace(at_once, parted)) == 3, "started here and awaited there is one"


def test_least_bytes_by_hand():
    """Eight volumes of 8³ and their densities, 2·8·512; 3 filters of 3³ leave 6³, then 4³: 8·3·216 + 8·3·64; 100 parameters."""
    assert least_bytes(small(), 100) == 4 * (7 * 100 + 3 * (8192 + 5184 + 1536))
