"""What the devices of a mesh send each other in one step, read off the compiled program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

BYTES = {"pred": 1, "s8": 1, "u8": 1, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
KINDS = "all-reduce|all-gather|collective-permute|all-to-all|reduce-scatter|collective-broadcast"


class Collective(NamedTuple):
    kind: str
    bytes: int  # of its result on one device
    rare: bool  # inside a loop of the step: a resampling, the repair of dead particles


def collectives(hlo: str) -> list[Collective]:
    """Of one step: of the body of the program's outermost loop, and of the loops within."""
    parts = _computations(hlo)
    entry = next(name for name in parts if name.startswith("ENTRY "))
    step = max((name for name in _bodies(parts[entry])), key=lambda name: len(parts[name]))
    return [*_inside(parts, step, rare=False)]


def _computations(hlo: str) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    name = ""
    for line in hlo.splitlines():
        if line and not line[0].isspace() and line.rstrip().endswith("{"):
            head = line.split("(")[0].strip()
            name = head if head.startswith("ENTRY ") else head.split()[0].lstrip("%")
            parts[name] = []
        elif name:
            parts[name].append(line)
    return parts


def _bodies(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if found := re.search(r" while\(.*body=%?([\w.\-]+)", line):
            yield found.group(1)


def _inside(parts: dict[str, list[str]], name: str, rare: bool) -> Iterator[Collective]:
    for line in parts[name]:
        found = re.search(rf"= (.*?) ({KINDS})(-start)?\(", line)
        if found:
            yield Collective(found.group(2), _bytes(found.group(1)), rare)
        if found := re.search(r" (?:call|fusion)\(.*(?:to_apply|calls)=%?([\w.\-]+)", line):
            yield from _inside(parts, found.group(1), rare)
        if found := re.search(r" conditional\(.*", line):
            for branch in re.findall(r"computations?=\{?%?([\w.\-]+)", line):
                yield from _inside(parts, branch, True)
        for body in _bodies([line]):
            yield from _inside(parts, body, True)


def _bytes(shapes: str) -> int:
    total = 0
    for kind, lengths in re.findall(r"(\w+)\[([\d,]*)\]", shapes):
        size = 1
        for length in filter(None, lengths.split(",")):
            size *= int(length)
        total += size * BYTES.get(kind, 4)
    return total
