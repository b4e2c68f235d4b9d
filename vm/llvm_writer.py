"""Writes a native loop as LLVM IR.

The function made takes the address of a *state*, slots of 8 bytes laid out by :class:`Layout`: values of the locals
that the loop starts with; for each ref register the address and sizes of its buffer; the address of the globals;
room for the locals that it leaves with and for the operands of an instruction that failed. It returns the number of
the exit taken, or -1 less the number of the instruction that failed, which has changed nothing.

Locals are stack slots, which LLVM turns into registers. A loop whose buffer indexes :mod:`halgpu.vm.ranges` can
tell is written twice: without checks, for when the condition at its entry says that all accesses are in range and
that no buffer written lies over another one (which LLVM is told, so that it may vectorize), and with the checks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from halgpu.vm.dataflow import LETTERS, CallTypes, Local, TypedFunction, branches, reads
from halgpu.vm.isa import Op, Remap
from halgpu.vm.llvm_table import BUFFER_ELEMENTS, LIBRARY, NATIVE, TYPES
from halgpu.vm.loops import Loop, Region, is_jump, ref_copies
from halgpu.vm.ranges import RangeAnalysis
from halgpu.vm.value_flow import Flow, constant
from halgpu.vm.verifier import Block

NAME = "halgpu_loop"
"""The name of the function in its module."""
INTERRUPTED = -(1 << 63)
"""What it returns when a signal handler raised."""
_WORK = 1 << 22
"""Iterations between two looks for signals."""
_FORMATS = {"i32": "i4x", "i64": "q", "f32": "f4x", "f64": "d"}
_MOST_WRITTEN = 30_000
"""Instructions of a region, all its writings together, from which on no loop is written twice."""
_POLL = """
declare ptr @halgpu.release_lock() #2
declare void @halgpu.take_lock(ptr) #2
declare i32 @halgpu.check_signals() #2
define internal i32 @poll(ptr %thread) #3 {
  call void @halgpu.take_lock(ptr %thread)
  %signal = call i32 @halgpu.check_signals()
  %again = call ptr @halgpu.release_lock()
  ret i32 %signal
}
"""
_INTRINSICS = """
declare i32 @llvm.abs.i32(i32, i1)
declare i64 @llvm.abs.i64(i64, i1)
declare i32 @llvm.ctlz.i32(i32, i1)
declare i64 @llvm.ctlz.i64(i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare float @llvm.fma.f32(float, float, float)
declare double @llvm.fma.f64(double, double, double)
""" + "\n".join(
    f"declare {t} @llvm.{name}.f{bits}({t})"
    for bits, t in ((32, "float"), (64, "double"))
    for name in ("fabs", "ceil", "floor", "round", "roundeven", "sqrt")
)


class Layout:
    """Where things are in a region's state, in slots of 8 bytes."""

    def __init__(self, region: Region, calls: CallTypes) -> None:
        self.incoming = struct.Struct("<" + "".join(_FORMATS[kind] for kind, _ in region.incoming))
        self.outgoing = struct.Struct("<" + "".join(_FORMATS[kind] for kind, _ in region.outgoing))
        self.refs = len(region.incoming)
        self.globals = self.refs + 4 * len(region.reads)
        self.results = self.globals + 1
        self.operands = self.results + len(region.outgoing)
        self.faults = [tuple(reads(op, calls)) for op in region.faults]
        """For each instruction that can fail, the locals it reads."""
        self.byte_length = 8 * (self.operands + max(map(len, self.faults), default=0))

    def operands_of(self, fault: int) -> struct.Struct:
        """How the operands of an instruction that failed are laid out."""
        return struct.Struct("<" + "".join(_FORMATS[kind] for kind, _ in self.faults[fault]))


@dataclass(eq=False, slots=True)
class _Copy:
    """One writing of a loop."""

    number: int
    loop: Loop
    outer: _Copy | None
    proven: frozenset[int] = frozenset()
    exact: frozenset[int] = frozenset()
    apart: bool = False
    """Buffers written are known not to lie over others."""
    counter: Local | None = None
    """Set for an innermost loop that ends by itself: the counter that sees to it."""
    entries: dict[int, str] = field(default_factory=dict)
    """Labels of the entries of inner loops, by header."""


class Writer:
    """Writes one region. ``blocks`` are those of the function, ``whole`` the values in them."""

    def __init__(
        self, region: Region, blocks: dict[int, Block], typed: TypedFunction, calls: CallTypes, whole: Flow
    ) -> None:
        self.layout = Layout(region, calls)
        self._region = region
        self._blocks = blocks
        self._typed = typed
        self._calls = calls
        self._whole = whole
        self._lines: list[str] = []
        self._names = 0
        self._copies = 0
        self._written = 0
        self._faults = {op.offset: number for number, op in enumerate(region.faults)}
        self._exits = {key: number for number, key in enumerate(region.exits)}
        self._analyses: dict[int, tuple[RangeAnalysis, frozenset[int]]] = {}
        self._used: set[str] = set()

    def text(self) -> str:
        """The whole module, for LLVM 20 and newer."""
        self._prologue()
        self._enter(self._region.loop, None)
        self._epilogue()
        library = [
            f"declare {t} @halgpu.{name}({', '.join([t] * LIBRARY[name])}) #0"
            for name in sorted(self._used)
            for t in ("float" if name.endswith("f") and name != "erf" else "double",)
        ]
        return "\n".join(
            [
                f"define i64 @{NAME}(ptr noalias %state) #1 {{",
                *self._lines,
                "}",
                _POLL,
                _INTRINSICS,
                *library,
                "attributes #0 = { nounwind willreturn memory(none) }",
                "attributes #1 = { nounwind }",
                "attributes #2 = { nounwind memory(inaccessiblemem: readwrite) }",
                "attributes #3 = { noinline cold nounwind memory(inaccessiblemem: readwrite) }",
                *self._metadata(),
                "",
            ]
        )

    # Lines

    def _line(self, text: str) -> None:
        self._lines.append("  " + text)

    def _label(self, name: str) -> None:
        self._lines.append(f"{name}:")

    def _name(self, prefix: str = "v") -> str:
        self._names += 1
        return f"%{prefix}.{self._names}"

    def _emit(self, text: str) -> str:
        name = self._name()
        self._line(f"{name} = {text}")
        return name

    def _read(self, local: Local) -> str:
        return self._emit(f"load {TYPES[local[0]]}, ptr {_slot(local)}")

    def _assign(self, local: Local, value: str) -> None:
        self._line(f"store {TYPES[local[0]]} {value}, ptr {_slot(local)}")

    def _state(self, slot: int) -> str:
        return self._emit(f"getelementptr i64, ptr %state, i64 {slot}")

    # Start and end

    def _prologue(self) -> None:
        self._label("start")
        for local in sorted(self._locals()):
            self._line(f"{_slot(local)} = alloca {TYPES[local[0]]}")
            self._assign(local, "0" if local[0][0] == "i" else "0.0")
        self._line("%filled = alloca i64")
        self._line("%work = alloca i64")
        self._line(f"store i64 {_WORK}, ptr %work")
        known = self._whole.starts[self._region.loop.header]
        for position, local in enumerate(self._region.incoming):
            number = constant(self._whole, known.get(local, ("in", local)))
            if number is not None:
                self._assign(local, literal(number, local[0]))
                continue
            held = self._emit(f"load {TYPES[local[0]]}, ptr {self._state(position)}")
            self._assign(local, held)
        for position, ref in enumerate(self._region.reads):
            for part, (name, kind) in enumerate(_PARTS):
                address = self._state(self.layout.refs + 4 * position + part)
                self._line(f"%{name}{ref} = load {kind}, ptr {address}")
            for access in ("reads", "writes"):
                none = self._emit(f"icmp slt i64 %{access}{ref}, 0")
                self._line(f"%{access}{ref}.0 = select i1 {none}, i64 0, i64 %{access}{ref}")
                for shift in (1, 2, 3):
                    self._line(f"%{access}{ref}.{shift} = lshr i64 %{access}{ref}.0, {shift}")
            self._line(f"%end{ref} = getelementptr i8, ptr %bytes{ref}, i64 %reads{ref}.0")
        self._line(f"%globals = load ptr, ptr {self._state(self.layout.globals)}")
        self._disjoint = self._pairs_apart()
        self._line("%thread = call ptr @halgpu.release_lock()")

    def _locals(self) -> set[Local]:
        found = {*self._region.incoming, *self._region.outgoing}
        for offset in self._region.loop.blocks:
            block = self._blocks[offset]
            for op in block.ops:
                found.update(reads(op, self._calls))
                found.update(_result(op))
            for number, _ in enumerate(branches(block.ops[-1])):
                for source, made in self._typed.copies[block.ops[-1].offset, number]:
                    found.update((made,) if source is None else (source, made))
        return found

    def _pairs_apart(self) -> str:
        """Whether no buffer that is written lies over another one."""
        condition = "true"
        for first, second in self._pairs():
            before = self._emit(f"icmp ule ptr %end{first}, %bytes{second}")
            behind = self._emit(f"icmp ule ptr %end{second}, %bytes{first}")
            either = self._emit(f"or i1 {before}, {behind}")
            condition = either if condition == "true" else self._emit(f"and i1 {condition}, {either}")
        return condition

    def _pairs(self) -> list[tuple[int, int]]:
        refs, stores = self._region.reads, self._region.stores
        return [(a, b) for a in refs for b in refs if a < b and (a in stores or b in stores)]

    def _epilogue(self) -> None:
        for number in range(len(self._region.exits)):
            self._label(f"exit{number}")
            for position, local in enumerate(self._region.outgoing):
                value = self._read(local)
                address = self._state(self.layout.results + position)
                self._line(f"store {TYPES[local[0]]} {value}, ptr {address}")
            self._return(number)
        for number, locals_read in enumerate(self.layout.faults):
            self._label(f"fault{number}")
            for position, local in enumerate(locals_read):
                value = self._read(local)
                address = self._state(self.layout.operands + position)
                self._line(f"store {TYPES[local[0]]} {value}, ptr {address}")
            self._return(-1 - number)
        self._label("interrupted")
        self._return(INTERRUPTED)

    def _return(self, outcome: int) -> None:
        self._line("call void @halgpu.take_lock(ptr %thread)")
        self._line(f"ret i64 {outcome}")

    def _metadata(self) -> Iterator[str]:
        """Alias scopes: one a buffer, and for each the list of those that are apart from it."""
        refs = self._region.reads
        yield '!0 = !{!"branch_weights", i32 1, i32 1048576}'
        yield '!1 = !{!"branch_weights", i32 1048576, i32 1}'
        yield "!2 = distinct !{!2}"
        apart = {frozenset(pair) for pair in self._pairs()}
        for position, ref in enumerate(refs):
            first = 3 + 3 * position
            others = [3 + 3 * at for at, other in enumerate(refs) if frozenset((ref, other)) in apart]
            yield f"!{first} = distinct !{{!{first}, !2}}"
            yield f"!{first + 1} = !{{!{first}}}"
            yield f"!{first + 2} = !{{{', '.join(f'!{other}' for other in others)}}}"

    def _scopes(self, copy: _Copy, ref: int) -> str:
        if not copy.apart or not any(ref in pair for pair in self._pairs()):
            return ""
        first = 3 + 3 * self._region.reads.index(ref)
        return f", !alias.scope !{first + 1}, !noalias !{first + 2}"

    # Loops

    def _analysis(self, loop: Loop) -> tuple[RangeAnalysis, frozenset[int]]:
        made = self._analyses.get(loop.header)
        if made is None:
            analysis = RangeAnalysis(loop, self._blocks, self._typed, self._calls, self._whole)
            made = self._analyses[loop.header] = analysis, analysis.provable()
        return made

    def _enter(self, loop: Loop, outer: _Copy | None) -> None:
        """Write the way into a loop, and the loop, once or twice."""
        around = outer or _Copy(0, loop, None)
        analysis, provable = self._analysis(loop)
        new = provable - around.proven
        # Between the outermost two and the innermost one there is little to win, and each writing takes time.
        worthwhile = not loop.inner or loop.depth - self._region.loop.depth < 2
        if not new or not worthwhile or self._written > _MOST_WRITTEN:
            self._loop(loop, outer, around.proven, around.exact, around.apart)
            return
        proof = analysis.prove(new, self._emit, self._read, lambda op: self._count(op))
        condition = proof.condition
        if not around.apart and self._disjoint != "true":
            condition = self._emit(f"and i1 {condition}, {self._disjoint}")
        fast, slow = self._name("fast"), self._name("slow")
        self._line(f"br i1 {condition}, label {fast}, label {slow}")
        self._label(fast[1:])
        self._loop(loop, outer, around.proven | new, around.exact | proof.exact, True)
        self._label(slow[1:])
        self._loop(loop, outer, around.proven, around.exact, around.apart)

    def _loop(
        self, loop: Loop, outer: _Copy | None, proven: frozenset[int], exact: frozenset[int], apart: bool
    ) -> None:
        self._copies += 1
        counter = None if loop.inner else self._analysis(loop)[0].ends_by(exact)
        copy = _Copy(self._copies, loop, outer, proven, exact, apart, counter)
        for inner in loop.inner:
            copy.entries[inner.header] = f"enter{inner.header}.{copy.number}"
        self._line(f"br label %b{loop.header}.{copy.number}")
        for offset in loop.own:
            self._label(f"b{offset}.{copy.number}")
            self._block(self._blocks[offset], copy)
        for inner in loop.inner:
            self._label(copy.entries[inner.header])
            self._enter(inner, copy)

    def _block(self, block: Block, copy: _Copy) -> None:
        self._written += len(block.ops)
        for op in block.ops[:-1]:
            self._operation(op, copy)
        last = block.ops[-1]
        edges = [(number, *edge, self._name("edge")) for number, edge in enumerate(branches(last))]
        if is_jump(last):
            self._line(f"br label {edges[0][3]}")
        elif last.instruction.symbol == "CondBranch":
            taken = self._emit(f"icmp ne i32 {self._operand(last, 'condition')}, 0")
            self._line(f"br i1 {taken}, label {edges[0][3]}, label {edges[1][3]}")
        else:
            cases = " ".join(f"i32 {number}, label {edge[3]}" for number, edge in enumerate(edges[1:]))
            self._line(f"switch i32 {self._operand(last, 'index')}, label {edges[0][3]} [{cases}]")
        for number, target, remap, label in edges:
            self._label(label[1:])
            counter = None if copy.counter is None else self._read(copy.counter)
            for source, made in self._typed.copies[last.offset, number]:
                self._assign(made, literal(0, made[0]) if source is None else self._read(source))
            onward, comes_back = self._target(copy, target, remap)
            if comes_back is not None and comes_back.counter is None:
                self._poll(onward)
                continue
            if counter is not None and target not in copy.loop.blocks:
                self._note_work(copy, counter)
            self._line(f"br label %{onward}")

    def _target(self, copy: _Copy, target: int, remap: Remap) -> tuple[str, _Copy | None]:
        """The label of where a branch goes, and the loop that it starts another iteration of."""
        around: _Copy | None = copy
        while around is not None:
            if target in around.entries:
                return around.entries[target], None
            if target in around.loop.blocks:
                return f"b{target}.{around.number}", around if target == around.loop.header else None
            around = around.outer
        return f"exit{self._exits[target, ref_copies(remap)]}", None

    def _poll(self, onward: str) -> None:
        """Look for signals now and then: the loop is left when a handler raises."""
        left = self._work_left("1")
        enough, look = self._emit(f"icmp sge i64 {left}, 0"), self._name("look")
        self._line(f"br i1 {enough}, label %{onward}, label {look}, !prof !1")
        self._label(look[1:])
        self._line(f"store i64 {_WORK}, ptr %work")
        raised = self._emit("call i32 @poll(ptr %thread)")
        calm = self._emit(f"icmp eq i32 {raised}, 0")
        self._line(f"br i1 {calm}, label %{onward}, label %interrupted")

    def _work_left(self, done: str) -> str:
        left = self._emit(f"sub i64 {self._emit('load i64, ptr %work')}, {done}")
        self._line(f"store i64 {left}, ptr %work")
        return left

    def _note_work(self, copy: _Copy, counter: str) -> None:
        """Count the iterations of an innermost loop, which does not look for signals, where it ends."""
        assert copy.counter is not None
        wide = counter if copy.counter[0] == "i64" else self._emit(f"sext i32 {counter} to i64")
        self._work_left(self._emit(f"and i64 {wide}, {_WORK - 1}"))

    # Instructions

    def _operand(self, op: Op, name: str) -> str:
        spec = op.instruction.fields[op.instruction.index[name]]
        if spec.kind != "register":
            return literal(op[name], spec.type or "i64")
        assert spec.type is not None
        return self._read((spec.type, op[name].ordinal))

    def _operation(self, op: Op, copy: _Copy) -> None:
        special = _SPECIAL.get(op.instruction.encoding)
        if special is not None:
            special(self, op, copy)
            return
        names = {
            spec.name: self._operand(op, spec.name)
            for spec in op.instruction.fields
            if spec.access != "write" and spec.type != "ref"
        }
        names |= {
            "t": self._name("t") + ".",
            "result": self._name("r"),
            "nsw": "nsw " if op.offset in copy.exact else "",
            "global_memory": "",
        }
        for text in NATIVE[op.instruction.symbol].format(**names).split("\n"):
            if text.startswith("fault "):
                self._fault(op, text.removeprefix("fault "))
            else:
                self._note_library(text)
                self._line(text)
        for local in _result(op):
            self._assign(local, names["result"])

    def _note_library(self, text: str) -> None:
        if "@halgpu." in text:
            self._used.add(text.partition("@halgpu.")[2].partition("(")[0])

    def _fault(self, op: Op, condition: str) -> None:
        onward = self._name("on")
        fault = f"%fault{self._faults[op.offset]}"
        self._line(f"br i1 {condition}, label {fault}, label {onward}, !prof !0")
        self._label(onward[1:])

    def _constant(self, op: Op, copy: _Copy) -> None:
        [local] = _result(op)
        value = op["value"] if "value" in op.instruction.index else 0
        self._assign(local, literal(value, local[0]))

    def _switch(self, op: Op, copy: _Copy) -> None:
        [local] = _result(op)
        index = self._operand(op, "index")
        chosen = self._operand(op, "default_value")
        for position, register in enumerate(op["values"]):
            value = self._read((local[0], register.ordinal))
            here = self._emit(f"icmp eq i32 {index}, {position}")
            kind = TYPES[local[0]]
            chosen = self._emit(f"select i1 {here}, {kind} {value}, {kind} {chosen}")
        self._assign(local, chosen)

    # Buffers

    def _count(self, op: Op) -> str:
        """The number of elements of a load's or store's buffer that it may use, 0 where it may not use it."""
        if op.instruction.encoding == "buffer_load":
            return f"%reads{op['source_buffer'].ordinal}.{_element(op)[1]}"
        return f"%writes{op['target_buffer'].ordinal}.{_element(op)[1]}"

    def _load(self, op: Op, copy: _Copy) -> None:
        ref = op["source_buffer"].ordinal
        address = self._address(op, copy, ref, "source_offset")
        kind, _ = _element(op)
        value = self._emit(f"load {kind}, ptr {address}, align 1{self._scopes(copy, ref)}")
        [local] = _result(op)
        if kind != TYPES[local[0]]:
            extension = "sext" if op.instruction.symbol.endswith("S") else "zext"
            value = self._emit(f"{extension} {kind} {value} to i32")
        self._assign(local, value)

    def _store(self, op: Op, copy: _Copy) -> None:
        ref = op["target_buffer"].ordinal
        value = self._narrowed(op)
        address = self._address(op, copy, ref, "target_offset")
        self._line(f"store {_element(op)[0]} {value}, ptr {address}, align 1{self._scopes(copy, ref)}")

    def _narrowed(self, op: Op) -> str:
        kind, _ = _element(op)
        value = self._operand(op, "value")
        return self._emit(f"trunc i32 {value} to {kind}") if kind in ("i8", "i16") else value

    def _address(self, op: Op, copy: _Copy, ref: int, offset: str) -> str:
        index = self._operand(op, offset)
        if op.offset not in copy.proven:
            self._fault(op, self._emit(f"icmp uge i64 {index}, {self._count(op)}"))
        return self._emit(f"getelementptr inbounds {_element(op)[0]}, ptr %bytes{ref}, i64 {index}")

    def _fill(self, op: Op, copy: _Copy) -> None:
        ref = op["target_buffer"].ordinal
        kind, shift = _element(op)
        at, length, value = (
            self._operand(op, "target_offset"),
            self._operand(op, "length"),
            self._narrowed(op),
        )
        self._fault(op, self._emit(f"icmp slt i64 %writes{ref}, 0"))
        self._check_range(op, at, length, f"%writes{ref}.{shift}")
        address = self._emit(f"getelementptr {kind}, ptr %bytes{ref}, i64 {at}")
        if kind == "i8":
            self._line(f"call void @llvm.memset.p0.i64(ptr {address}, i8 {value}, i64 {length}, i1 false)")
            return
        again, body, done = (self._name("fill") for _ in range(3))
        self._line("store i64 0, ptr %filled")
        self._line(f"br label {again}")
        self._label(again[1:])
        index = self._emit("load i64, ptr %filled")
        more = self._emit(f"icmp ult i64 {index}, {length}")
        self._line(f"br i1 {more}, label {body}, label {done}")
        self._label(body[1:])
        place = self._emit(f"getelementptr {kind}, ptr {address}, i64 {index}")
        self._line(f"store {kind} {value}, ptr {place}, align 1")
        self._line(f"store i64 {self._emit(f'add nuw i64 {index}, 1')}, ptr %filled")
        self._line(f"br label {again}")
        self._label(done[1:])

    def _copy(self, op: Op, copy: _Copy) -> None:
        source, target = op["source_buffer"].ordinal, op["target_buffer"].ordinal
        source_at, at = self._operand(op, "source_offset"), self._operand(op, "target_offset")
        length = self._operand(op, "length")
        self._fault(op, self._emit(f"icmp slt i64 %length{source}, 0"))
        self._fault(op, self._emit(f"icmp slt i64 %writes{target}, 0"))
        self._check_range(op, source_at, length, f"%length{source}")
        self._check_range(op, at, length, f"%writes{target}.0")
        # No bytes of a released buffer may be copied; support.buffer_copy looks only when there are some.
        closed, some = self._emit(f"icmp slt i64 %reads{source}, 0"), self._emit(f"icmp ne i64 {length}, 0")
        self._fault(op, self._emit(f"and i1 {closed}, {some}"))
        origin = self._emit(f"getelementptr i8, ptr %bytes{source}, i64 {source_at}")
        place = self._emit(f"getelementptr i8, ptr %bytes{target}, i64 {at}")
        self._line(f"call void @llvm.memmove.p0.p0.i64(ptr {place}, ptr {origin}, i64 {length}, i1 false)")

    def _check_range(self, op: Op, at: str, length: str, count: str) -> None:
        self._fault(op, self._emit(f"icmp ugt i64 {at}, {count}"))
        room = self._emit(f"sub i64 {count}, {at}")
        self._fault(op, self._emit(f"icmp ugt i64 {length}, {room}"))

    def _length(self, op: Op, copy: _Copy) -> None:
        length = f"%length{op['buffer'].ordinal}"
        self._fault(op, self._emit(f"icmp slt i64 {length}, 0"))
        [local] = _result(op)
        self._assign(local, length)


_SPECIAL = {
    "constant": Writer._constant,
    "zero_constant": Writer._constant,
    "switch": Writer._switch,
    "buffer_load": Writer._load,
    "buffer_store": Writer._store,
    "buffer_fill": Writer._fill,
    "buffer_copy": Writer._copy,
    "buffer_length": Writer._length,
}
"""Instructions that are more than a template, by their encoding."""

_PARTS = (("bytes", "ptr"), ("reads", "i64"), ("writes", "i64"), ("length", "i64"))
"""Of a buffer: its address, how many bytes may be read and written (-1 where none may), and its length (or -1)."""


def _slot(local: Local) -> str:
    return f"%{LETTERS[local[0]]}{local[1]}"


def _result(op: Op) -> list[Local]:
    return [
        (spec.type, value.ordinal)
        for spec, value in zip(op.instruction.fields, op.operands, strict=True)
        if spec.access == "write" and spec.type not in (None, "ref", "any")
    ]


def _element(op: Op) -> tuple[str, int]:
    verb = {"buffer_load": "Load", "buffer_store": "Store", "buffer_fill": "Fill"}[op.instruction.encoding]
    return BUFFER_ELEMENTS[op.instruction.symbol.removeprefix(f"Buffer{verb}")]


def literal(value: int | float, value_type: str) -> str:
    """A number as LLVM writes it; floats by their bits."""
    if value_type[0] == "i":
        return str(int(value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
