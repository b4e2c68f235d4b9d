"""Hot loops as machine code, where llvmlite is installed (the ``jit`` extra) and ``HALGPU_JIT`` is not 0.

Translated Python counts how often control comes to the header of a loop that can be native. When that has been
often, the loop is looked for among the compiled ones on disk, and later compiled; from then on the Python calls it
in place of running its blocks: with the values of locals and the addresses of buffers, which stay where they are
until it returns. Memory is changed in the same order, up to an instruction that fails: that one has changed nothing,
and is run again as Python, which raises what it raises, with its place in the program.

The interpreter's lock is not held while native code runs; now and then it looks for signals, so that Ctrl-C ends it.
A buffer that may not be read or written counts as empty, so that its use fails where Python's would. LLVM is loaded
when the first loop is compiled or looked for.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import struct
import sys
import threading
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from halgpu import disk_cache, environment, errors
from halgpu.vm import numerics
from halgpu.vm.buffer import Buffer
from halgpu.vm.dataflow import LETTERS, CallTypes, TypedFunction
from halgpu.vm.llvm_table import LIBRARY
from halgpu.vm.llvm_writer import NAME, Layout, Writer
from halgpu.vm.loops import Region
from halgpu.vm.value_flow import Flow
from halgpu.vm.verifier import VerifiedFunction

if TYPE_CHECKING:
    from halgpu.vm.sources import Source
    from halgpu.vm.translator import Translation

PROBE = 400
"""How often control comes to the loops of a nest before its outermost one is looked for on disk."""
COMPILE = 8000
"""… and before it is compiled."""
INNER = 4
"""An inner loop waits this many times longer for each loop around it: that one will do, if it is come to again."""
NEVER = sys.maxsize
_MOST_VALUES = 4_000_000
"""Blocks times registers of a function whose loops are still compiled."""
_FORMAT = "2"
"""Part of the key of compiled loops: changes with what their machine code expects of this module."""

_NEEDED = (
    "memcpy memmove memset ceil ceilf floor floorf round roundf roundeven roundevenf trunc truncf".split()
)
"""Functions that LLVM may call by itself. It ends the process when machine code calls what cannot be found."""

_lock = threading.RLock()
"""Held for all that LLVM does here."""
if hasattr(os, "register_at_fork"):
    # A fork waits for a compilation of another thread: the child could not use what that one left half done, nor the
    # lock that llvmlite holds meanwhile.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def enabled() -> bool:
    """Whether loops are compiled: llvmlite is there, not turned off, and the host is one that the IR is written for.

    Raises InvalidArgument for another HALGPU_JIT than 0, 1 and check; for check, Unavailable where nothing is compiled.
    """
    wanted = _wanted()
    if wanted == "0":
        return False
    obstacle = _obstacle()
    if obstacle and wanted == CHECK:
        raise errors.Unavailable(f"HALGPU_JIT=check would check nothing: {obstacle}")
    return not obstacle


CHECK = "check"
"""The value of HALGPU_JIT for which a loop that LLVM does not take is an error."""


def _wanted() -> str:
    return environment.choice("HALGPU_JIT", ("0", "1", CHECK), "1")


def _obstacle() -> str:
    """Why no loop can be compiled here; empty if one can."""
    if importlib.util.find_spec("llvmlite") is None:
        return "llvmlite is not installed: pip install 'halgpu[jit]' (in a checkout: pip install llvmlite)"
    if sys.byteorder != "little" or ctypes.sizeof(ctypes.c_void_p) != 8 or numerics.C_LIBRARY is None:
        return "loops are compiled on little-endian 64-bit machines with a C library that Python finds"
    return ""


class _Compiler:
    """LLVM for this machine."""

    def __init__(self) -> None:
        from llvmlite import binding

        if binding.llvm_version_info[0] < 20:
            raise errors.Unimplemented("llvmlite is too old: machine code for loops needs 0.45 or newer")
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        self._llvm = binding
        self._machine = self._new_machine()
        named = {f"halgpu.{name}": numerics.c_function(name, count) for name, count in LIBRARY.items()}
        named |= {name: getattr(numerics.C_LIBRARY, name, None) for name in _NEEDED}
        api = ctypes.pythonapi
        named |= {
            "halgpu.release_lock": api.PyEval_SaveThread,
            "halgpu.take_lock": api.PyEval_RestoreThread,
            "halgpu.check_signals": api.PyErr_CheckSignals,
        }
        for name, function in named.items():
            if function is None:
                raise errors.Unimplemented(f"the C library has no function for {name}, which loops may call")
            binding.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
        self.identity = (
            "native loop", _FORMAT, ".".join(map(str, binding.llvm_version_info)), binding.get_process_triple(),
            binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten(),
        )  # fmt: skip

    def _new_machine(self) -> Any:
        llvm = self._llvm
        return llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True
        )

    def compile(self, text: str) -> bytes:
        """Machine code of a module, as an object file."""
        llvm = self._llvm
        context = llvm.create_context()
        module = llvm.parse_assembly(text, context)
        module.triple = self._machine.triple
        module.data_layout = str(self._machine.target_data)
        module.verify()
        tuning = llvm.create_pipeline_tuning_options(speed_level=3)
        tuning.loop_vectorization = tuning.slp_vectorization = True
        tuning.loop_interleaving = tuning.loop_unrolling = True
        passes = llvm.create_pass_builder(self._machine, tuning)
        passes.getModulePassManager().run(module, passes)
        code: bytes = self._machine.emit_object(module)
        return code

    def load(self, code: bytes) -> tuple[Any, int]:
        """The engine that holds machine code, and the address of the loop in it."""
        llvm = self._llvm
        # The engine owns its module and machine, but not the module's context: that has to be one that never ends.
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self._new_machine())
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return engine, engine.get_function_address(NAME)


_compiler: _Compiler | None = None


def compiler() -> _Compiler:
    """LLVM, started when it is first needed."""
    global _compiler
    if _compiler is None:
        _compiler = _Compiler()
    return _compiler


class NativeLoops:
    """The regions of a function, with their machine code as far as there is any. All contexts share it."""

    def __init__(
        self,
        function: VerifiedFunction,
        typed: TypedFunction,
        calls: CallTypes,
        regions: tuple[Region, ...],
    ) -> None:
        self.regions = regions
        self._function = function
        self._typed = typed
        self._calls = calls
        self._flow: Flow | None = None
        self._texts: dict[int, str] = {}
        self._made: dict[int, _Machine | None] = {}
        self._refused: set[int] = set()

    def bind(self, namespace: dict[str, Any], source: Source, translation: Translation) -> None:
        """Put what the translated Python names into a context's namespace."""
        if not self.regions:
            return
        function = source.function_ordinal
        first = PROBE if disk_cache.enabled() else COMPILE
        namespace[f"hot{function}"] = [0] * (self.regions[-1].nest + 1)
        when = namespace[f"when{function}"] = [first * (1 + INNER * region.depth) for region in self.regions]
        for region in self.regions:
            loop = NativeLoop(self, region, namespace, translation, function, when)
            namespace[f"loop{function}_{region.number}"] = loop

    def text(self, number: int) -> str:
        """A region as LLVM IR."""
        made = self._texts.get(number)
        if made is None:
            made = self._texts[number] = self._write(self.regions[number])
        return made

    def _write(self, region: Region) -> str:
        blocks = {block.offset: block for block in self._function.blocks}
        if len(blocks) * self._function.definition.i32_registers > _MOST_VALUES:
            raise errors.ResourceExhausted(
                f"the function has {len(blocks)} blocks, too many to follow its values"
            )
        if self._flow is None:
            self._flow = Flow(blocks, blocks, 0, self._typed, self._calls)
        return Writer(region, blocks, self._typed, self._calls, self._flow).text()

    def machine(self, number: int, compile_now: bool) -> _Machine | None:
        """A region's machine code; None where it has to be, or cannot be, compiled."""
        with _lock:
            made = self._made.get(number)
            if made is None and number not in self._refused:
                self._refused.add(number)  # should this raise
                made = self._made[number] = self._find(number, compile_now)
                self._refused.discard(number)
            return made

    def _find(self, number: int, compile_now: bool) -> _Machine | None:
        text = self.text(number)
        name = disk_cache.key((*compiler().identity, text))
        code = disk_cache.load(name)
        if code is None:
            if not compile_now:
                return None
            code = compiler().compile(text)
            disk_cache.store(name, code)
        return _Machine(Layout(self.regions[number], self._calls), *compiler().load(code))


class _Machine:
    """Machine code, ready to be called."""

    def __init__(self, layout: Layout, engine: Any, address: int) -> None:
        self.layout = layout
        self._engine = engine  # owns the code
        # PYFUNCTYPE: the code lets go of the interpreter's lock itself, and an exception that a signal handler raised
        # while it looked for signals is raised here.
        self.call = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(address)
        self.state = ctypes.c_char * layout.byte_length


_NO_BYTES = (0, -1, -1)


class NativeLoop:
    """A region in one context: called by the translated Python with locals, then refs."""

    def __init__(
        self,
        loops: NativeLoops,
        region: Region,
        namespace: dict[str, Any],
        translation: Translation,
        function: int,
        when: list[int],
    ) -> None:
        self._loops = loops
        self._region = region
        self._namespace = namespace
        self._translation = translation
        self._function = function
        self._name = translation.name(function)
        self._when = when
        self._machine: _Machine | None = None
        self._globals: tuple[Any, int] | None = None
        self._compile_at = COMPILE * (1 + INNER * region.depth)
        self._waits = when[region.number] < self._compile_at  # then it is only looked for on disk

    def __call__(self, *values: Any) -> tuple[Any, ...] | None:
        """The number of the exit and the locals that the loop leaves with; None when there is no machine code yet."""
        machine = self._machine or self._prepare()
        if machine is None:
            return None
        layout = machine.layout
        count = len(self._region.incoming)
        held: list[Any] = []
        # Those to be written first: that may move the bytes of another ref to the same memory.
        found: dict[int, tuple[int, int, int, int]] = {}
        for stores in (True, False):
            for ref, value in zip(self._region.reads, values[count:], strict=True):
                if (ref in self._region.stores) == stores:
                    found[ref] = self._bytes(value, stores, held)
        slots = [number for ref in self._region.reads for number in found[ref]]
        slots.append(self._globals_address())
        state = bytearray(layout.byte_length)
        layout.incoming.pack_into(state, 0, *values[:count])
        struct.pack_into(f"<{len(slots)}q", state, 8 * layout.refs, *slots)
        outcome = machine.call(ctypes.addressof(machine.state.from_buffer(state)))
        if outcome < 0:
            self._fail(-1 - outcome, state, values[count:])
        return (outcome, *layout.outgoing.unpack_from(state, 8 * layout.results))

    def _prepare(self) -> _Machine | None:
        """Look for machine code, and the second time make it; say when to ask again."""
        number = self._region.number
        try:
            self._machine = self._loops.machine(number, compile_now=not self._waits)
        except Exception as error:  # whatever LLVM or llvmlite has to say, the program goes on without
            if _wanted() == CHECK:
                raise errors.Internal(f"a loop of {self._name} does not compile: {error}") from error
            self._waits = False
        if self._machine is None:
            self._when[number] = self._compile_at if self._waits else NEVER
            self._waits = False
        return self._machine

    def _bytes(self, buffer: Any, stores: bool, held: list[Any]) -> tuple[int, int, int, int]:
        """Address, readable and writable bytes and length of a ref's buffer; views go to ``held``."""
        if not isinstance(buffer, Buffer):
            return (*_NO_BYTES, -1)
        writable = -1
        view: Any = None
        try:
            if stores:
                view = buffer.write_view()
                writable = len(view)
        except errors.Error:
            pass  # the first store fails, as Python
        try:
            if view is None:
                view = buffer.read_view()
        except errors.Error:
            return (*_NO_BYTES, buffer.byte_length)
        if not len(view):
            return 0, 0, min(writable, 0), buffer.byte_length
        array = np.frombuffer(view, np.uint8)
        held.append(array)
        return array.__array_interface__["data"][0], len(view), writable, buffer.byte_length

    def _globals_address(self) -> int:
        if self._globals is None:
            data = self._namespace["G"].data
            if not len(data):
                return 0
            array = np.frombuffer(data, np.uint8)
            self._globals = array, array.__array_interface__["data"][0]
        return self._globals[1]

    def _fail(self, number: int, state: bytearray, refs: tuple[Any, ...]) -> None:
        """Run the instruction that failed as Python, which raises."""
        assert self._machine is not None
        layout = self._machine.layout
        op = self._region.faults[number]
        found = layout.operands_of(number).unpack_from(state, 8 * layout.operands)
        locals_read = [f"{LETTERS[kind]}{ordinal}" for kind, ordinal in layout.faults[number]]
        named = dict(zip(locals_read, found, strict=True))
        named |= {f"r{ref}": value for ref, value in zip(self._region.reads, refs, strict=True)}
        again = FunctionType(self._translation.again(self._function, op, tuple(named)), self._namespace)
        again(**named)
        raise errors.Internal(
            f"{op.instruction.mnemonic} at {op.offset:#x} of {self._name} failed in machine code only"
        )
