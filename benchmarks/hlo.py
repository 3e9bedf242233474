"""Reads the launches of a GPU from the text of a program that XLA has compiled for it.

All functions are pure functions of text. A launch is an operation that the host, or a graph of commands, hands to the GPU. It
is a fusion, a library call, a Triton kernel, a copy or a collective. Loops count as often as they run. A loop whose length
only the running program knows counts once, and each of its passes asks the host whether to continue.
"""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

FUSION, LIBRARY, TRITON, COPY, OTHER = "fusion", "library", "triton", "copy", "other"
COLLECTIVE, HOST = "collective", "host"
KERNELS = (FUSION, LIBRARY, TRITON, COPY, OTHER)
"""Kinds of launches that compute or copy on one device. The last one is unknown to the rules below."""

_BYTES = {"pred": 1, "s4": 1, "u4": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2, "s32": 4, "u32": 4, "f32": 4}
_BYTES |= {"s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16, "f8e4m3fn": 1, "f8e5m2": 1, "token": 0}

_IDLE = re.compile(
    r"(parameter|constant|tuple|get-tuple-element|bitcast|after-all|add-dependency|opt-barrier|partition-id|replica-id|domain)$"
    r"|.*-(done|update)$"
)
_COLLECTIVES = re.compile(r"(all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|collective-broadcast)$")
_HOST_OPERATIONS = re.compile(r"(infeed|outfeed|send|recv)$")
_HOST_CALLS = re.compile(r"callback|MoveToHost|MoveToDevice|host_compute|annotate_device_placement", re.IGNORECASE)
_HOST_MEMORY = "S(5)"
_TRITON = re.compile(r"triton|mosaic|pallas", re.IGNORECASE)
_LIBRARY = re.compile(r"__cu|__cudnn|cublas|cusolver|cufft|cusparse|^cu[a-z]+_", re.IGNORECASE)


class Instruction(NamedTuple):
    """Line of a computation: `name = shape opcode(operands), attributes`."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str

    @property
    def operation(self) -> str:
        """Returns the opcode, without the mark of an asynchronous start."""
        return self.opcode.removesuffix("-start")

    @property
    def target(self) -> str:
        """Returns the target of a custom call, or "" of any other instruction."""
        return found(r'custom_call_target="([^"]*)"', self.attributes)

    @property
    def scope(self) -> str:
        """Returns its origin in the source, as JAX names it."""
        return found(r'op_name="([^"]*)"', self.attributes)

    @property
    def passes(self) -> int | None:
        """Returns the number of passes of a loop, or None if only the running program knows it."""
        count = found(r'"known_trip_count":\{"n":"(\d+)"', self.attributes)
        return int(count) if count else None

    def calls(self, *names: str) -> list[str]:
        """Returns the computations that these attributes name."""
        texts = (found(rf"\b{name}=(\{{[^}}]*\}}|%[\w.-]+)", self.attributes) for name in names)
        return [name for text in texts for name in re.findall(r"%([\w.-]+)", text)]


class Program(NamedTuple):
    """Computations by name, and the name of the entry."""

    computations: dict[str, list[Instruction]]
    entry: str


class Launch(NamedTuple):
    """Operation of the GPU.

    Attributes:
      kind: one of the names above.
      times: how often one pass does it. Loops of unknown length count as one pass.
    """

    kind: str
    instruction: Instruction
    within: str
    times: int


def parse(text: str) -> Program:
    """Parses the computations of a module as XLA prints it."""
    computations: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if line.startswith("}"):
            current = None
        elif current is None and (header := re.match(r"(ENTRY )?%([\w.-]+) .*\{$", line)):
            current = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif current is not None and (instruction := _instruction(line)):
            current.append(instruction)
    return Program(computations, entry)


def _instruction(line: str) -> Instruction | None:
    head = re.match(r"\s+(?:ROOT )?%([\w.-]+) = ", line)
    if not head:
        return None
    rest = line[head.end() :]
    shape = rest[: _closing(rest)] if rest.startswith("(") else rest.partition(" ")[0]
    rest = rest[len(shape) + 1 :]
    opcode = rest.partition("(")[0]
    rest = rest[len(opcode) :]
    operands = rest[: _closing(rest)]
    return Instruction(head[1], shape, opcode, tuple(re.findall(r"%([\w.-]+)", operands)), rest[len(operands) :])


def _closing(text: str) -> int:
    """Returns the position behind the parenthesis that closes the first one."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return place + 1
    return len(text)


def found(pattern: str, text: str) -> str:
    """Returns the match of a pattern's first group in a text, or ""."""
    match = re.search(pattern, text)
    return match[1] if match else ""


def size(shape: str) -> int:
    """Returns the bytes of an array or of a tuple of arrays.

    >>> size("f32[32,500]{1,0}"), size("(s32[], (pred[3]{0}, f32[2]{0}))")
    (64000, 15)
    """
    arrays = re.findall(r"([a-z]\w*)\[([\d,]*)\]", shape)
    return sum(_BYTES[kind] * math.prod(dimensions(numbers)) for kind, numbers in arrays)


def dimensions(numbers: str) -> list[int]:
    """Returns the dimensions of an array from the text between its brackets."""
    return [int(number) for number in numbers.split(",") if number]


def step(program: Program, steps: int) -> str:
    """Returns the computation of one step: the body of the outermost loop of `steps` passes, or the entry for 1.

    Raises:
      ValueError: there is no such loop, or more than one.
    """
    if steps == 1:
        return program.entry
    level, seen = [program.entry], []
    while level:
        loops = [each for name in level for each in program.computations[name] if each.opcode == "while"]
        bodies = [body for loop in loops if loop.passes == steps for body in loop.calls("body")]
        if len(bodies) == 1:
            return bodies[0]
        level, seen = [body for loop in loops for body in loop.calls("body")], [*seen, *(loop.passes for loop in loops)]
    raise ValueError(f"a program of {steps} steps must have one loop of so many; got loops of {seen}")


def launches(program: Program, computation: str, times: int = 1) -> Iterator[Launch]:
    """Yields the launches of a computation, and of the loops and calls within it."""
    for instruction in program.computations[computation]:
        inner = instruction.calls("condition", "body", "to_apply", "called_computations", "branch_computations", "calls")
        if instruction.opcode == "while":
            for name in inner:
                yield from launches(program, name, times * (instruction.passes or 1))
        elif instruction.opcode in ("call", "conditional", "async-start"):
            for name in inner:
                yield from launches(program, name, times)
        elif not _IDLE.match(instruction.opcode):
            yield Launch(_kind(program, instruction), instruction, computation, times)


def open_loops(program: Program, computation: str) -> list[Instruction]:
    """Returns the loops of a computation whose length the host has to ask for at every pass."""
    loops = []
    for instruction in program.computations[computation]:
        if instruction.opcode == "while" and instruction.passes is None:
            loops.append(instruction)
        if instruction.opcode in ("while", "call", "conditional"):
            for name in instruction.calls("body", "to_apply", "called_computations", "branch_computations"):
                loops += open_loops(program, name)
    return loops


def meeting(program: Program, instruction: Instruction) -> Instruction | None:
    """Returns the collective of a launch or of its body. XLA of JAX 0.12 compiles an all-reduce to its own kernel."""
    return next((each for each in (instruction, *body(program, instruction)) if _COLLECTIVES.match(each.operation)), None)


def _kind(program: Program, instruction: Instruction) -> str:
    opcode, target = instruction.operation, instruction.target
    if _HOST_OPERATIONS.match(opcode) or _HOST_CALLS.search(target) or _HOST_MEMORY in instruction.shape:
        return HOST
    if meeting(program, instruction):
        return COLLECTIVE
    if opcode == "copy":
        return COPY
    if opcode == "custom-call":
        return TRITON if _TRITON.search(target) else LIBRARY if _LIBRARY.search(target) else OTHER
    if opcode == "fusion":
        return _fusion_kind(program, instruction)
    return FUSION  # an operation that XLA left alone is a kernel of its own


def _fusion_kind(program: Program, fusion: Instruction) -> str:
    backend = found(r'"fusion_backend_config":\{"kind":"([^"]*)"', fusion.attributes)
    if "cudnn" in backend or any(part.target and _LIBRARY.search(part.target) for part in body(program, fusion)):
        return LIBRARY
    return TRITON if _TRITON.search(backend) else COPY if "memcpy" in backend else FUSION


def body(program: Program, fusion: Instruction) -> list[Instruction]:
    """Returns the instructions that a fusion computes."""
    return [each for name in fusion.calls("calls") for each in program.computations.get(name, [])]
