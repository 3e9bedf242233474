"""What the launches of a GPU's program cost, read from its text: bytes moved, operations, and how exactly they are computed."""

import math
import re
from typing import NamedTuple

from benchmarks.hlo import Instruction, Launch, Program, body, dimensions, found, meeting, size


def unordered(program: Program, launch: Launch) -> bool:
    """Whether a launch adds numbers in no fixed order: a scatter whose places may meet."""
    parts = body(program, launch.instruction) or [launch.instruction]
    return any(each.opcode == "scatter" and "unique_indices=true" not in each.attributes for each in parts)


def met(program: Program, launch: Launch) -> tuple[str, int]:
    """The name of a launch's collective, and the bytes that each device gives to it."""
    collective = meeting(program, launch.instruction)
    assert collective
    home = program.computations[launch.within] if collective is launch.instruction else body(program, launch.instruction)
    shapes = {each.name: each.shape for each in home}
    return collective.operation, sum(size(shapes.get(name, "")) for name in collective.operands)


def moved(program: Program, launch: Launch) -> int:
    """Bytes that a launch reads and writes: an estimate that knows no caches. Of what is sliced, the slice counts."""
    shapes = {each.name: each.shape for each in program.computations[launch.within]}
    instruction = launch.instruction
    inside = body(program, instruction)
    if not inside:
        return size(instruction.shape) + sum(size(shapes.get(name, "")) for name in instruction.operands)
    return _written(inside) + sum(_read(each, inside) for each in inside if each.opcode == "parameter")


_SLICES = ("dynamic-slice", "slice", "gather")


def _read(parameter: Instruction, inside: list[Instruction]) -> int:
    """Of a fusion's parameter: all of it, unless only slices of it are used, or it is what a slice is written into."""
    users = [each for each in inside if parameter.name in each.operands]
    if users and all(
        each.opcode in (*_SLICES, "dynamic-update-slice", "bitcast") and each.operands[0] == parameter.name for each in users
    ):
        return sum(_read(each, inside) if each.opcode == "bitcast" else _sliced(each) for each in users)
    return size(parameter.shape)


def _sliced(user: Instruction) -> int:
    return 0 if user.opcode == "dynamic-update-slice" else size(user.shape)


def _written(inside: list[Instruction]) -> int:
    by_name = {each.name: each for each in inside}

    def of(instruction: Instruction) -> int:
        match instruction.opcode:
            case "tuple":
                return sum(of(by_name[name]) for name in instruction.operands)
            case "bitcast":
                return of(by_name[instruction.operands[0]])
            case "dynamic-update-slice":
                return size(by_name[instruction.operands[1]].shape)
            case _:
                return size(instruction.shape)

    return of(inside[-1])  # XLA prints the root last


class Product(NamedTuple):
    """A matrix product or a convolution: its operations, whether at full precision, and where it is from."""

    operations: int
    full: bool
    scope: str


def products(program: Program, launch: Launch) -> list[Product]:
    """Those of one launch; what a Triton or Pallas kernel multiplies itself is not seen."""
    parts = body(program, launch.instruction) or [launch.instruction]
    home = program.computations[launch.within] if parts == [launch.instruction] else parts
    shapes = {each.name: each.shape for each in home}
    return [
        Product(operations, _full(each.attributes), each.scope or launch.instruction.scope)
        for each in parts
        if (operations := _operations(each, shapes))
    ]


def _full(attributes: str) -> bool:
    """Whether float32 operands stay what they are: XLA allows TF32 where the highest precision is asked for none of them."""
    algorithm = found(r"algorithm=(\w+)", attributes) or found(r'"algorithm":"(ALG_DOT_\w+)"', attributes).lower()
    if algorithm:
        return "tf32" not in algorithm and "bf16" not in algorithm
    asked = found(r"operand_precision=\{([^}]*)\}", attributes) or found(r'"operand_precision":\[([^\]]*)\]', attributes)
    return any(word.strip(' "').lower() == "highest" for word in asked.split(","))


def _operations(instruction: Instruction, shapes: dict[str, str]) -> int:
    """A product and its addition count two."""
    sizes = [dimensions(found(r"\[([\d,]*)\]", shapes.get(name, ""))) for name in instruction.operands]
    result = dimensions(found(r"\[([\d,]*)\]", instruction.shape))
    if instruction.opcode == "dot":
        inner = dimensions(found(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes))
        return 2 * math.prod(result) * math.prod(sizes[0][place] for place in inner)
    if "gemm" in instruction.target or "matmul" in instruction.target:
        inner = dimensions(re.sub(r'"', "", found(r'"lhs_contracting_dimensions":\[([^\]]*)\]', instruction.attributes)))
        return 2 * math.prod(result) * math.prod(sizes[0][place] for place in inner)
    if instruction.opcode == "convolution" or "conv" in instruction.target:
        return _convolution(instruction, sizes, result)
    return 0


def _convolution(instruction: Instruction, sizes: list[list[int]], result: list[int]) -> int:
    """By the labels of the forward pass, whichever of the three arrays is the one that is computed."""
    kernel = found(r"dim_labels=\w+_(\w+)->", instruction.attributes)
    if "BackwardFilter" in instruction.target:
        weights, out = result, sizes[1]
    elif "BackwardInput" in instruction.target:
        weights, out = sizes[1], sizes[0]
    else:
        weights, out = sizes[1], result
    return 2 * math.prod(out) * math.prod(weights) // weights[kernel.index("o")]
