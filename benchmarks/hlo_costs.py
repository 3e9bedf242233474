"""Costs of a GPU program's launches, read from its text: bytes, operations and their precision."""

import math
import re
from typing import NamedTuple

from benchmarks.hlo import Instruction, Launch, Program, body, dimensions, found, meeting, size


def unordered(program: Program, launch: Launch) -> bool:
    """Returns whether a launch adds numbers in no fixed order: a scatter whose positions may coincide."""
    parts = body(program, launch.instruction) or [launch.instruction]
    return any(each.opcode == "scatter" and "unique_indices=true" not in each.attributes for each in parts)


def met(program: Program, launch: Launch) -> tuple[str, int]:
    """Returns the name of a launch's collective, and the bytes that each device gives to it."""
    collective = meeting(program, launch.instruction)
    assert collective
    home = program.computations[launch.within] if collective is launch.instruction else body(program, launch.instruction)
    shapes = {each.name: each.shape for each in home}
    return collective.operation, sum(size(shapes.get(name, "")) for name in collective.operands)


def moved(program: Program, launch: Launch) -> int:
    """Estimates the bytes that a launch reads and writes, without caches. Sliced operands count by their slices."""
    shapes = {each.name: each.shape for each in program.computations[launch.within]}
    instruction = launch.instruction
    inside = body(program, instruction)
    if not inside:
        return size(instruction.shape) + sum(size(shapes.get(name, "")) for name in instruction.operands)
    return _written(inside) + sum(_read(each, inside) for each in inside if each.opcode == "parameter")


_SLICES = ("dynamic-slice", "slice", "gather")


def _read(parameter: Instruction, inside: list[Instruction]) -> int:
    """Returns the bytes that a fusion reads of a parameter: its slices, none if it is only written to, or all of it."""
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
    """Matrix product or convolution: its operations, whether it has full precision, and its origin."""

    operations: int
    full: bool
    scope: str


def products(program: Program, launch: Launch) -> list[Product]:
    """Returns the products of one launch. Products within a Triton or Pallas kernel are not visible."""
    parts = body(program, launch.instruction) or [launch.instruction]
    home = program.computations[launch.within] if parts == [launch.instruction] else parts
    shapes = {each.name: each.shape for each in home}
    return [
        Product(operations, _full(each.attributes), each.scope or launch.instruction.scope)
        for each in parts
        if (operations := _operations(each, shapes))
    ]


def _full(attributes: str) -> bool:
    """Returns whether float32 operands keep full precision. XLA allows TF32 if neither asks for the highest precision."""
    algorithm = found(r"algorithm=(\w+)", attributes) or found(r'"algorithm":"(ALG_DOT_\w+)"', attributes).lower()
    if algorithm:
        return "tf32" not in algorithm and "bf16" not in algorithm
    asked = found(r"operand_precision=\{([^}]*)\}", attributes) or found(r'"operand_precision":\[([^\]]*)\]', attributes)
    return any(word.strip(' "').lower() == "highest" for word in asked.split(","))


def _operations(instruction: Instruction, shapes: dict[str, str]) -> int:
    """Returns the operations. A product and its addition count as two."""
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
    """Counts operations by the labels of the forward pass, for any of the three arrays as the result."""
    kernel = found(r"dim_labels=\w+_(\w+)->", instruction.attributes)
    if "BackwardFilter" in instruction.target:
        weights, out = result, sizes[1]
    elif "BackwardInput" in instruction.target:
        weights, out = sizes[1], sizes[0]
    else:
        weights, out = sizes[1], result
    return 2 * math.prod(out) * math.prod(weights) // weights[kernel.index("o")]
