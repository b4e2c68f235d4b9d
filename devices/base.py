"""The device contract: everything the rest of halgpu knows about a device.

A backend is one file that subclasses three small classes: :class:`Device` (opens the hardware, allocates,
builds kernels, owns the order of work), :class:`Memory` (one allocation) and :class:`Kernel` (one launch).
What all backends share is written once: ranges, access and lifetimes in ``buffer.py``, who holds the valid
bytes in ``residency.py``, the argument check of a dispatch here.

Nothing in this package knows the virtual machine.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from halgpu import environment
from halgpu.devices import dispatch, staging
from halgpu.devices.buffer import Allocator, Buffer, Mapping
from halgpu.devices.constants import check_language, quick_converter, size
from halgpu.devices.dispatch import token
from halgpu.devices.forks import FORKED, keep_forever
from halgpu.devices.layout import BindingLayout, KernelLayout, Program
from halgpu.devices.memory import Block, BufferUsage, Memory, MemoryAccess, MemoryType
from halgpu.devices.pool import DEFAULT_LIMIT, Pool
from halgpu.devices.profile import Profiling, Timer
from halgpu.devices.residency import Counters
from halgpu.errors import FailedPrecondition, Incompatible, InvalidArgument

if TYPE_CHECKING:
    from halgpu.devices.debug_allocator import Ledger
    from halgpu.devices.sources import Kernels, Sources

__all__ = [
    "Allocator", "Binding", "BindingLayout", "Buffer", "BufferUsage", "Capabilities", "Device", "DeviceInfo",
    "Kernel", "KernelLayout", "Mapping", "Memory", "MemoryAccess", "MemoryType", "Program", "Statistics",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a device is and can do. Sizes are bytes."""

    name: str
    vendor: str
    driver: str
    kind: Literal["cpu", "gpu", "accelerator", "host", "null"]
    unified_memory: bool
    """The device's kernels and the host address the same memory: a map moves no bytes."""
    fp16: bool
    fp64: bool
    int64_atomics: bool
    max_workgroup_invocations: int
    max_workgroup_size: tuple[int, int, int]
    max_workgroup_count: tuple[int, int, int]
    local_memory: int
    max_allocation: int
    max_parameter_bytes: int
    languages: frozenset[str]
    """Kernel languages that :meth:`Device.build` takes, such as ``"opencl-c"``; empty means any."""
    exact_division: bool = False
    """f32 division and square root can be correctly rounded (OpenCL: when the program asks for it)."""
    extensions: frozenset[str] = field(default=frozenset(), repr=False)


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot of a device's counters, taken by :attr:`Device.statistics`.

    ``bytes_up`` and ``bytes_down`` count bytes copied to and from the device; ``maps`` how often the host was
    given an allocation's bytes (not when it still had them); ``live_handles`` allocations alive.
    ``bytes_allocated`` counts what was asked for by those; freed memory that is kept for later ones is
    ``bytes_pooled``. ``programs_compiled`` counts what drivers were given as source (some look it up in a cache
    of their own), ``programs_cached`` what came from halgpu's cache; a driver's program may hold the kernels of
    many :class:`Program`.
    """

    bytes_allocated: int
    bytes_peak: int
    live_handles: int
    bytes_up: int
    bytes_down: int
    maps: int
    dispatches: int
    programs_compiled: int
    programs_cached: int
    bytes_pooled: int = 0


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device that can be used or, with ``available`` false and the ``reason``, one that cannot."""

    uri: str
    name: str
    available: bool
    reason: str = ""


Binding = tuple[Buffer, int, int]
"""A kernel argument: buffer, byte offset in it, byte length."""


class Kernel(ABC):
    """A built kernel: :meth:`dispatch` (shared) checks and marks residency, :meth:`launch` (backend) enqueues."""

    language = "opencl-c"
    """Whose C layout structures by value have (constants.py)."""
    pointer_alignment = 1
    """Bytes, a power of two; more than 1 for plain kernels only. Bindings that begin elsewhere in their allocation are
    staged (staging.py)."""

    def __init__(self, device: Device, layout: KernelLayout) -> None:
        self.device = device
        self.layout = layout
        self.workgroup_limits = device.capabilities.max_workgroup_count
        self._smallest_limit = min(self.workgroup_limits)
        self._counters = device.counters
        self._number = dispatch.number()
        self._program_key = (-self._number,)
        self._checks = tuple(map(dispatch.binding_check, layout.bindings))
        self._alignment = max((binding.alignment for binding in layout.bindings), default=1)
        self._convert = quick_converter(layout.types or ())
        # What was given last and cannot have changed, and what became of it.
        self._last_grid: tuple[Any, tuple[int, int, int]] = (None, (1, 1, 1))
        self._last_constants: tuple[Any, tuple[int, ...]] = (None, ())
        self._last_words: tuple[tuple[int, ...] | None, tuple[int, ...]] = (None, ())

    def __repr__(self) -> str:
        return f"<Kernel {self.layout.name} on {self.device.uri}>"

    def dispatch(
        self,
        workgroups: int | Sequence[int],
        constants: Sequence[Any] = (),
        bindings: Sequence[Buffer | Binding | Any] = (),
    ) -> None:
        """Run the kernel on ``workgroups`` (a count, or up to three) once what was enqueued before is done.

        ``constants`` are what the layout's types take: ints that fit, numbers, sequences for vectors and
        structures; without types, 32-bit ints, signed or unsigned. ``bindings`` are buffers, buffer views, or
        ``(buffer, offset, length)`` in bytes. All is checked against the layout and the device first; errors
        name kernel and argument. Returns without waiting. A grid with a zero runs nothing.
        """
        grid, values = self._last_grid, self._last_constants
        counts = grid[1] if workgroups is grid[0] else self._counts(workgroups)
        words = values[1] if constants is values[0] else self._words(constants)
        key = None
        if type(bindings) is tuple or type(bindings) is list:
            try:
                key = (self._number, *map(token, bindings))
            except AttributeError:  # other bindings than whole buffers and views
                pass
            else:
                if self._repeat(key, counts, words):
                    return
        bound = dispatch.bindings(self, bindings)
        if key is not None:
            key = (self._number, *map(dispatch.named, bindings))
        self._start(counts, words, bound, key)

    def dispatch_words(
        self, workgroups: tuple[int, ...], words: tuple[int, ...], bindings: Sequence[Binding | None],
        *, remember: bool = False,
    ) -> None:  # fmt: skip
        """As :meth:`dispatch`, for programs: constants are 32-bit words whatever their types (constants.py).

        All numbers are ints; nothing else is looked at closely. ``remember`` lets the device hold the buffers for
        a while, which is for those that are going to be released, not only dropped: see dispatch.py.
        """
        grid, values = self._last_grid, self._last_words
        counts = grid[1] if workgroups == grid[1] else self._counts(workgroups)
        if words != values[0]:
            values = self._last_words = (words, dispatch.words(self, words))
        key = self._program_key
        if not self._counters.known or not self._repeat(key, counts, values[1], bindings):
            self._start(counts, values[1], bindings, key if remember else None, bindings)

    def _repeat(
        self, key: tuple[int, ...], counts: tuple[int, int, int], words: tuple[int, ...],
        bindings: Sequence[Binding | None] | None = None,
    ) -> bool:  # fmt: skip
        """Launch with bindings that are known to be right (dispatch.py), if those given are such."""
        counters = self._counters
        with counters.lock:
            known = counters.known.get(key)
            if known is None or known[0] != bindings or 0 in counts:
                return False
            _, memories, offsets, lengths = known
            self.launch(counts, words, memories, offsets, lengths)
            counters.dispatches += 1
            return True

    def _start(
        self, counts: tuple[int, int, int], values: tuple[int, ...], bindings: Sequence[Binding | None],
        key: tuple[int, ...] | None = None, given: Sequence[Binding | None] | None = None,
    ) -> None:  # fmt: skip
        device, counters = self.device, self._counters
        if len(bindings) != len(self._checks):
            raise dispatch.bad_binding_count(self, len(bindings))
        memories: list[Memory] = []
        offsets: list[int] = []
        lengths: list[int] = []
        settled = True
        with counters.lock:
            if device.unusable is not None:
                device.require_usable()
            try:
                for (buffer, offset, length), (rights, minimum) in zip(bindings, self._checks):  # type: ignore[misc]  # noqa: B905
                    root: Any = buffer.root
                    if (
                        root.device is not device
                        or buffer.rights & rights != rights
                        or not 0 <= offset <= buffer.byte_length - length
                        or length < minimum
                    ):
                        break
                    if not root.settled:
                        settled = False
                    memories.append(root.memory)
                    lengths.append(length)
                    offsets.append(buffer.offset + offset)
            except (AttributeError, TypeError, ValueError):
                pass  # found out in words below
            if len(offsets) != len(self._checks):
                raise dispatch.bad_binding(self, len(offsets), bindings[len(offsets)])
            starts = reduce(or_, offsets) if any(offsets) else 0
            if starts % self._alignment:  # one of them perhaps; all are powers of two
                dispatch.check_alignment(self, offsets)
            if 0 in counts:
                return
            copies: Sequence[staging.Copy] = ()
            if starts % self.pointer_alignment:
                copies = staging.prepare(self, bindings, memories, offsets, lengths)
            elif not settled:
                memories = self._bring(bindings)
            elif key is not None and counters.recorder is None:
                dispatch.remember(counters.known, key, (given, memories, offsets, lengths))
                # A release takes no lock: one after the check above may have had nothing to forget yet.
                if any(buffer.released for buffer, _, _ in bindings):  # type: ignore[misc]
                    counters.known.clear()
            if counters.recorder is None:
                self.launch(counts, values, memories, offsets, lengths)
            else:
                counters.recorder.launch(self, counts, values, memories, offsets, lengths)
            counters.dispatches += 1
            for copy in copies:
                copy.back()

    def _bring(self, bindings: Sequence[Any]) -> list[Memory]:
        roots = [buffer.root for buffer, _, _ in bindings]
        for root, layout in zip(roots, self.layout.bindings, strict=True):
            if layout.access == "read":
                root.device_reads()
            else:
                root.device_writes()
            # Not fresh after either.
            root.settled = root.view is None and root.lease is None
        # Asked for only now: a write may have moved a root to other memory (windows.py).
        return [root.memory for root in roots]

    def _counts(self, workgroups: int | Sequence[int]) -> tuple[int, int, int]:
        kind = type(workgroups)
        try:
            x, y, z = (workgroups, 1, 1) if kind is int else workgroups  # type: ignore[misc]
        except (TypeError, ValueError):
            return dispatch.grid(self, workgroups)
        limit = self._smallest_limit
        if type(x) is type(y) is type(z) is int and 0 <= x <= limit and 0 <= y <= limit and 0 <= z <= limit:
            counts = x, y, z
            if kind is int or kind is tuple:
                self._last_grid = workgroups, counts
            return counts
        return dispatch.grid(self, workgroups)

    def _words(self, constants: Sequence[Any]) -> tuple[int, ...]:
        words = self._untyped(constants) if self.layout.types is None else self._typed(constants)
        if type(constants) is tuple and dispatch.UNCHANGING.issuperset(map(type, constants)):
            self._last_constants = constants, words
        return words

    def _untyped(self, constants: Sequence[int]) -> tuple[int, ...]:
        if type(constants) in (tuple, list) and len(constants) == self.layout.constants:
            for value in constants:
                if type(value) is not int or not 0 <= value <= dispatch.U32_MAX:
                    break
            else:
                return tuple(constants)
        return dispatch.constants(self, constants)

    def _typed(self, constants: Sequence[Any]) -> tuple[int, ...]:
        if self._convert is not None and type(constants) in (tuple, list):
            try:
                return self._convert(constants)
            except Exception:  # whatever struct raises for a wrong value; found out in words below
                pass
        return dispatch.typed_constants(self, constants)

    @abstractmethod
    def launch(
        self, workgroups: tuple[int, int, int], constants: tuple[int, ...], memories: list[Memory],
        offsets: list[int], lengths: list[int],
    ) -> Any:  # fmt: skip
        """Enqueue with checked arguments: counts of workgroups, unsigned 32-bit constants, whole allocations,
        and each binding's byte offset in its allocation and byte length. No count is zero. The lists stay as they
        are, and the very same list of offsets always comes with the same memories. Called under the
        device's lock. Returns what the device's timer can tell the time of, None for work that is done."""


class Device(ABC):
    """An opened device. Obtained from :func:`halgpu.devices.open_device`; also a context manager.

    ``uri`` (canonical, such as ``"opencl:0"``), ``capabilities``, ``statistics`` (a snapshot), ``allocator``.
    Buffers and kernels keep their device alive.
    """

    def __init__(self, uri: str, capabilities: Capabilities) -> None:
        self.uri = uri
        self.capabilities = capabilities
        self.counters = Counters()
        self.lock = self.counters.lock
        """Held around everything that touches the device's queue or an allocation's state."""
        self.unusable: str | None = None
        """Why the device takes no more work; None while it does."""
        self.pool = Pool()
        """Freed memory for later allocations. Here and not in the allocator, which dies with its buffers."""
        self.ledger: Ledger | None = None
        """What the debug allocator knows; None without it."""
        self.configure({})
        self._allocator: weakref.ref[Allocator] | None = None
        _opened.add(self)

    def __repr__(self) -> str:
        return f"<Device {self.uri} ({self.capabilities.name})>"

    @property
    def statistics(self) -> Statistics:
        """The counters now, as a snapshot."""
        counters = self.counters
        with self.lock:
            counters.settle()
            counted = {name: getattr(counters, name) for name in Counters.REPORTED}
            return Statistics(**counted, bytes_pooled=self.pool.bytes_pooled)

    @property
    def allocator(self) -> Allocator:
        """Makes buffers on this device."""
        # The allocator and its buffers own the device, so the device must not own the allocator: a cycle
        # would leave the hardware open until a garbage collection.
        allocator = None if self._allocator is None else self._allocator()
        if allocator is None:
            allocator = Allocator(self) if self.ledger is None else self.ledger.allocator(self)
            self._allocator = weakref.ref(allocator)
        return allocator

    def configure(self, options: MappingOf[str, str]) -> None:
        """Set up pool and allocator: from a URI's options, else HALGPU_POOL and HALGPU_DEBUG_ALLOCATOR.

        For a new device, before anything is allocated.
        """
        debug = switch(options.get("debug"), "HALGPU_DEBUG_ALLOCATOR", False)
        pool = switch(options.get("pool"), "HALGPU_POOL", True)
        self.pool.limit = DEFAULT_LIMIT if pool and not debug else 0
        self.ledger = None
        if debug:
            from halgpu.devices.debug_allocator import Ledger

            self.ledger = Ledger(self.counters)

    def require_usable(self) -> None:
        """Raise FailedPrecondition when the device was closed or belongs to a parent process."""
        if self.unusable is not None:
            raise FailedPrecondition(f"device {self.uri} cannot be used: {self.unusable}")

    def load_kernels(
        self, source: str | Sources, layouts: Sequence[KernelLayout], *, options: Sequence[str] = ()
    ) -> Kernels:
        """Build hand-written kernels: ``device.load_kernels(source, [layout])["name"].dispatch(…)``.

        ``source`` is in the device's language (OpenCL C on OpenCL devices, CUDA C on CUDA), or a
        :class:`~halgpu.devices.sources.Sources` of several, made by ``halgpu.kernels``. ``layouts`` has one
        KernelLayout with typed constants for each kernel; ``options`` are the compiler's, such as ``-DN=4``.
        Raises Incompatible where the device lacks the language or a limit, InvalidArgument, naming kernel and
        argument, when the source does not build or its parameters are not those of the layout.
        """
        from halgpu.devices.sources import load

        return load(self, source, layouts, options)

    def build(self, program: Program) -> tuple[Kernel, ...]:
        """Build kernels in the order of ``program.layouts``.

        Raises Incompatible for a language, extension or limit that the device lacks, InvalidArgument (with
        numbered source, options and log) when the source does not build or disagrees with its layouts.
        """
        return self.build_all([program])[0]

    def build_all(self, programs: Sequence[Program]) -> Sequence[tuple[Kernel, ...]]:
        """Build several programs, each as :meth:`build` does, together where that is quicker.

        When some fail, raises the first one's error.
        """
        for program in programs:
            self.check(program)
        recorder = self.counters.recorder
        if recorder is None or not programs:
            return self.build_programs(programs)
        names = ", ".join(layout.name for program in programs for layout in program.layouts)
        with recorder.recording.span(f"build {names}", "device", language=programs[0].language):
            return self.build_programs(programs)

    def check(self, program: Program) -> None:
        """Raise what :meth:`build` would raise without compiling: for its language, extensions and layouts."""
        self.require_usable()
        check_program(self, program)

    def wait_idle(self) -> None:
        """Wait for all work enqueued so far; raises what failed in it."""
        if self.counters.forked:
            self.require_usable()
        with self.lock:
            recorder = self.counters.recorder
            if recorder is None:
                self.finish()
            else:
                with recorder.recording.span("wait", "device"):
                    self.finish()
        if self.ledger is not None:
            self.ledger.check()

    def profile(self) -> Profiling:
        """Time what the device does inside a block: ``with device.profile() as recording: …``.

        The :class:`~halgpu.devices.profile.Recording` has the time of each kernel and transfer on the device
        once the block has ended, which waits for all work. Raises FailedPrecondition while another block
        profiles or traces the device.
        """
        return Profiling(self)

    def reset_peak(self) -> None:
        """Let ``statistics.bytes_peak`` start over from what is allocated now."""
        with self.lock:
            self.counters.settle()
            self.counters.bytes_peak = self.counters.bytes_allocated

    def close(self) -> None:
        """Wait for all work, then refuse new buffers, kernels and dispatches; a second call does nothing.

        The bytes of live buffers stay readable. With the debug allocator, warns (ResourceWarning) of each.
        """
        if self.unusable is None:
            self.wait_idle()
            with self.lock:
                self.unusable = "it was closed"
                self.counters.known.clear()
            self.pool.trim()
            if self.ledger is not None:
                self.ledger.warn_of_leaks()

    def __enter__(self) -> Device:
        self.require_usable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what a backend writes -------------------------------------------------------------------------

    @abstractmethod
    def allocate_memory(self, byte_length: int) -> Memory:
        """Return a new allocation of at least one byte; ResourceExhausted when there is none."""

    def pooled_memory(self, byte_length: int, capacity: int, block: Block | None) -> Memory:
        """Return an allocation whose memory has ``capacity`` bytes: a block's, or new where that is None.

        For devices whose :meth:`Memory.recycle` returns blocks; the others never see one.
        """
        return self.allocate_memory(byte_length)

    @abstractmethod
    def build_kernels(self, program: Program) -> tuple[Kernel, ...]:
        """Build a program whose language, extensions and layouts the device takes."""

    def build_programs(self, programs: Sequence[Program]) -> Sequence[tuple[Kernel, ...]]:
        """Build several such programs. Overridden where that is quicker than one after the other."""
        return [self.build_kernels(program) for program in programs]

    @abstractmethod
    def finish(self) -> None:
        """Wait for all work enqueued so far."""

    def timer(self) -> Timer | None:
        """Return what tells when commands ran; None where each is done when the call that enqueues it returns.

        From then on until its end, commands give away their events: see profile.py.
        """
        return None


def switch(option: str | None, variable: str, default: bool) -> bool:
    """Return a URI option's "0" or "1" as a bool, else the environment variable's, else ``default``."""
    if option is None:
        return environment.switch(variable, default)
    if option not in ("0", "1"):
        raise InvalidArgument(f"expected 0 or 1, found {option!r}")
    return option == "1"


def check_program(device: Device, program: Program) -> None:
    """Raise unless the device has what the program needs and its layouts are within the device's limits."""
    able = device.capabilities
    names = ", ".join(layout.name for layout in program.layouts)
    if able.languages and program.language not in able.languages:
        raise Incompatible(
            f"kernels {names} are in {program.language!r}; "
            f"{device.uri} takes {', '.join(sorted(able.languages))}"
        )
    missing = [name for name in program.extensions if name not in able.extensions]
    if missing:
        raise Incompatible(
            f"kernels {names} need {', '.join(missing)}, which {device.uri} ({able.name}) lacks"
        )
    for layout in program.layouts:
        _check_layout(device, layout, program.language)


def _check_layout(device: Device, layout: KernelLayout, language: str) -> None:
    able = device.capabilities
    x, y, z = layout.workgroup_size
    if min(x, y, z) < 1 or layout.constants < 0 or layout.local_memory < 0:
        raise InvalidArgument(f"kernel {layout.name!r} has an impossible layout: {layout}")
    for what, found, limit in (
        ("workgroup size x", x, able.max_workgroup_size[0]),
        ("workgroup size y", y, able.max_workgroup_size[1]),
        ("workgroup size z", z, able.max_workgroup_size[2]),
        ("work-items in a workgroup", x * y * z, able.max_workgroup_invocations),
        ("bytes of local memory", layout.local_memory, able.local_memory),
        ("bytes of arguments", _argument_bytes(layout, language), able.max_parameter_bytes),
    ):
        if found > limit:
            raise Incompatible(f"kernel {layout.name!r} has {found} {what}; {device.uri} allows {limit}")


def _argument_bytes(layout: KernelLayout, language: str) -> int:
    if layout.types is None:
        return 8 * layout.pointers + layout.parameter_bytes
    for kind in layout.types:
        check_language(kind, language)
    return 8 * layout.pointers + sum(size(kind, language) for kind in layout.types)


_opened: weakref.WeakSet[Device] = weakref.WeakSet()


def opened_devices() -> list[Device]:
    """Return the devices that are open and usable."""
    return [device for device in _opened if device.unusable is None]


def _disable_in_child() -> None:
    for device in list(_opened):
        keep_forever(device)
        device.unusable = f"it was opened {FORKED}"
        device.counters.forked = True
        keep_forever(device.counters.known)
        device.counters.known = {}
        device.lock = device.counters.lock = threading.RLock()
        device.pool.abandon()


def _stop_other_threads() -> None:
    # A daemon thread that comes back from a C++ call after the interpreter has ended is unwound by Python,
    # which C++ answers by ending the process with "terminate called". All calls into drivers are made under
    # the device's lock; taken here and kept, no thread is inside one. This thread can still use devices.
    for device in list(_opened):
        device.lock.acquire(timeout=_EXIT_SECONDS)


_EXIT_SECONDS = 30
atexit.register(_stop_other_threads)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disable_in_child)
