"""Contexts: modules linked together, with the state they share for one use.

Linking follows runtime/src/iree/vm/context.c: modules are added in order and see those before them; each one's
dependencies, then its imports are resolved, then ``__init`` runs. Closing runs ``__deinit`` in reverse order.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from halgpu import errors
from halgpu.vm import abi, numerics, semantics, support
from halgpu.vm.allocator import DEFAULT_ALLOCATOR, Allocator
from halgpu.vm.buffer import Buffer
from halgpu.vm.definition import ImportDef
from halgpu.vm.lists import VALUE_TYPES, List
from halgpu.vm.module import BytecodeModule
from halgpu.vm.native import NativeModule
from halgpu.vm.sources import source_of

Module = NativeModule | BytecodeModule
Wrapper = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""Takes a function's full name and what it calls; returns what to call instead."""

_FULL_HAL = (
    "module {name} was compiled for the full HAL (it imports {imported}); "
    "compile it with --iree-execution-model=inline-dynamic"
)


class Function:
    """A function of a module in a context. Call it with VM values; keeps its context alive."""

    __slots__ = (
        "__weakref__", "_context", "_layout", "_plain", "_refs", "_target", "attrs", "cconv", "convention",
        "module_name", "name",
    )  # fmt: skip

    def __init__(
        self,
        context: Context,
        module_name: str,
        name: str,
        convention: abi.CallingConvention,
        attrs: Mapping[str, str],
        target: Callable[..., Any],
    ) -> None:
        self._context = context
        self._layout = convention.argument_layout
        self._refs = len(self._layout.items) if all(kind == "r" for kind in self._layout.items) else -1
        """How many arguments there are, all refs; -1 where some are none."""
        self._plain = self._target = target
        self.module_name = module_name
        self.name = name
        self.convention = convention
        self.cconv = str(convention)
        self.attrs = attrs

    attrs: Mapping[str, str]
    """Reflection attributes, such as ``iree.abi.declaration``."""
    cconv: str
    """The calling convention as text."""

    def __call__(self, *arguments: Any) -> Any:
        """Call with one VM value an argument; return None, a value, or a tuple of values.

        Raises InvalidArgument for wrong arguments, FailedPrecondition when the context is closed, and what the
        program raises: a halgpu error whose ``frames`` are the program's stack.
        """
        if self._context.closed:
            raise errors.FailedPrecondition(f"the context of {self.module_name}.{self.name} is closed")
        if len(arguments) != self._refs or not _NO_REFS.isdisjoint(map(type, arguments)):
            self._check(arguments)
        try:
            return self._target(*arguments)
        except errors.Error as error:
            _add_frames(error, error.__traceback__)
            raise
        except Exception as error:
            raise self._converted(error) from error

    def call_each(self, calls: Iterable[tuple[Any, ...]]) -> None:
        """Call once for each tuple of arguments, which are taken to be right; results are dropped.

        Raises as a call does, for the first that fails.
        """
        if self._context.closed:
            raise errors.FailedPrecondition(f"the context of {self.module_name}.{self.name} is closed")
        target = self._target
        try:
            for arguments in calls:
                target(*arguments)
        except errors.Error as error:
            _add_frames(error, error.__traceback__)
            raise
        except Exception as error:
            raise self._converted(error) from error

    def _converted(self, error: Exception) -> errors.Error:
        converted = _converted(error, f"{self.module_name}.{self.name}")
        _add_frames(converted, error.__traceback__)
        return converted

    def instrument(self, wrap: Wrapper | None) -> None:
        """See :func:`instrument`."""
        self._target = self._plain if wrap is None else wrap(f"{self.module_name}.{self.name}", self._plain)

    def invoke_packed(self, arguments: bytes | memoryview, refs: list[Any] | None = None) -> bytes:
        """Call with packed arguments, return packed results; see :mod:`halgpu.vm.abi` for the layout.

        Ref handles index ``refs``, and refs that are returned are appended to it.
        """
        result = self(*self._layout.unpack(arguments, refs or ()))
        return self.convention.result_layout.pack(self.as_tuple(result), refs)

    def as_tuple(self, result: Any) -> tuple[Any, ...]:
        """What a call returned as a tuple of values, whatever their number."""
        count = len(self.convention.results)
        return () if count == 0 else (result,) if count == 1 else tuple(result)

    @property
    def closed(self) -> bool:
        """Whether the function's context is closed, so that it cannot be called."""
        return self._context.closed

    def _check(self, arguments: tuple[Any, ...]) -> None:
        try:
            self._layout.check(arguments)
        except errors.InvalidArgument as error:
            raise errors.InvalidArgument(f"{self.module_name}.{self.name}: {error.message}") from None

    def __repr__(self) -> str:
        return f"<vm.Function {self.module_name}.{self.name} {self.cconv}>"


_NO_REFS = frozenset({int, float, str, bytes, bool})  # likely mistakes where a ref is wanted
_CALLS = (Function.__call__.__code__, Function.call_each.__code__)
_FAIL = support.fail.__code__
_INSTRUCTIONS = {support.__file__, numerics.__file__}


def _add_frames(error: errors.Error, traceback: TracebackType | None) -> None:
    """Append the program's frames up to the next call from outside, whose own are in place already."""
    frames: list[str] = []
    failed_instruction = False
    traceback = traceback and traceback.tb_next
    while traceback is not None and traceback.tb_frame.f_code not in _CALLS:
        code = traceback.tb_frame.f_code
        source = source_of(code.co_filename)
        if source is not None:
            if source.continues and frames:
                frames.pop()
            frames.append(source.frame(traceback.tb_lineno))
            called = traceback.tb_next and traceback.tb_next.tb_frame.f_code
            failed_instruction = bool(called and called.co_filename in _INSTRUCTIONS and called is not _FAIL)
        traceback = traceback.tb_next
    if failed_instruction and not error.frames:
        # An instruction failed, not something that it called: say where.
        error.message = f"{error.message}, in {frames[-1]}"
        error.args = (error.message,)
    error.frames += tuple(reversed(frames))


def _converted(error: Exception, name: str) -> errors.Error:
    if isinstance(error, RecursionError):
        return errors.ResourceExhausted(f"{name}: calls are nested too deeply")
    if isinstance(error, MemoryError):
        return errors.ResourceExhausted(f"{name}: out of host memory")
    return errors.Internal(f"{name}: a native function raised {type(error).__name__}: {error}")


class _State:
    """What a context holds for one bytecode module: the namespace its functions run in."""

    def __init__(self, module: BytecodeModule, allocator: Allocator) -> None:
        self.module = module
        self._plain: dict[str, Callable[..., Any]] = {}
        self._wrap = _wrapper
        definition = module.definition
        state = support.Globals(definition.global_bytes, definition.global_refs)
        self.namespace: dict[str, Any] = {
            **semantics.NAMES,
            "__name__": f"halgpu.{definition.name}",
            "F": numerics.f32_cell(),
            "G": state,
            **{f"G{code}": view for code, view in state.views.items()},
            "refs": state.refs,
            "ro": [None] * len(definition.rodata),
            "rodata": self._rodata,
            "allocator": allocator,
        }

    def define(self, ordinal: int) -> Callable[..., Any]:
        """A function in this context, and what it calls; translated if no context has used it yet."""
        pending = [ordinal]
        while pending:
            wanted = pending.pop()
            if f"fn{wanted}" not in self.namespace:
                source = self.module.translation.source(wanted)
                exec(source.code, self.namespace)
                if source.loops is not None:
                    source.loops.bind(self.namespace, source, self.module.translation)
                self._wrapped(f"fn{wanted}", source.name)
                pending += source.callees
        name = f"fn{ordinal}"
        defined: Callable[..., Any] = self._plain.get(name) or self.namespace[name]
        return defined

    def instrument(self, wrap: Wrapper | None) -> None:
        """See :func:`instrument`: the module's code finds what it calls in its namespace, by name."""
        self.namespace.update(self._plain)
        self._plain.clear()
        self._wrap = wrap
        for ordinal in range(len(self.module.translation.functions)):
            self._wrapped(f"fn{ordinal}", self.module.translation.name(ordinal))
        for ordinal, imported in enumerate(self.module.definition.imports):
            self._wrapped(f"m{ordinal}", imported.full_name)

    def _wrapped(self, key: str, name: str) -> None:
        if self._wrap is not None and key in self.namespace:
            self._plain[key] = self.namespace[key]
            self.namespace[key] = self._wrap(name, self._plain[key])

    def _rodata(self, ordinal: int) -> Buffer:
        made = Buffer.module_storage(self.module.definition.rodata[ordinal], self.module)
        self.namespace["ro"][ordinal] = made
        return made

    def bind_types(self, types: Mapping[str, type]) -> None:
        """Resolve the module's type table: ``T…`` to check refs against, ``E…`` as list elements."""
        for ordinal, name in enumerate(self.module.definition.types):
            self.namespace[f"T{ordinal}"] = _ref_type(name, types)
            self.namespace[f"E{ordinal}"] = _element_type(name, types)

    def bind_import(self, ordinal: int, imported: ImportDef, target: Callable[..., Any] | None) -> None:
        """Bind an import to what it calls, None for an optional one that is not there."""
        self.namespace[f"has{ordinal}"] = 0 if target is None else 1
        self.namespace[f"m{ordinal}"] = target or _missing(imported.full_name)
        self._wrapped(f"m{ordinal}", imported.full_name)

    def close(self) -> None:
        """Drop everything, and with it the cycle between functions and their namespace."""
        self.namespace.clear()
        self._plain.clear()


def _missing(name: str) -> Callable[..., Any]:
    def missing(*_: Any) -> Any:
        raise errors.NotFound(f"optional import {name} is not resolved: no module of this context offers it")

    return missing


class _Foreign(type):
    """Type of the classes that stand for ref types nobody registered: any object but the VM's own."""

    def __instancecheck__(cls, value: object) -> bool:
        return not isinstance(value, Buffer | List)


class _NoRef(type):
    """Type of the classes that stand for value types where a ref is expected: no object is one."""

    def __instancecheck__(cls, value: object) -> bool:
        return False


def _ref_type(name: str, types: Mapping[str, type]) -> type:
    shown = name.replace("\0", "\ufffd")  # which no class may have in its name
    if not name.startswith("!"):
        return _NoRef(shown, (), {})
    if name.startswith("!vm.list"):
        return List
    if name == "!vm.opaque":
        return object
    return types.get(name[1:]) or _Foreign(shown[1:], (), {})


def _element_type(name: str, types: Mapping[str, type]) -> str | type | None:
    if name in VALUE_TYPES:
        return name
    return None if name == "!vm.opaque" else _ref_type(name, types)


class Context:
    """Modules linked in order, and their state.

    ``modules`` are taken in the order given; a bytecode module sees those before it. Raises NotFound for a module
    or function that is missing, Incompatible for a version or calling convention that does not match or a module
    for the full HAL, and what an ``__init`` raises; then nothing is kept. ``allocator`` makes programs' buffers.

    A context is to be used by one thread at a time. It closes with :meth:`close`, ``with``, or its last reference.
    """

    def __init__(self, modules: Iterable[Module], allocator: Allocator | None = None) -> None:
        self._allocator = allocator or DEFAULT_ALLOCATOR
        self._modules: list[Module] = []
        self._states: dict[int, _State] = {}
        self._close = weakref.finalize(self, _close_quietly, self._modules, self._states)
        self._close.atexit = False
        _open.add(self)
        try:
            for module in modules:
                self._add(module)
        except BaseException:
            self._close()
            raise

    @property
    def modules(self) -> tuple[Module, ...]:
        """The modules, in order; none when closed."""
        return tuple(self._modules)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return not self._close.alive

    @property
    def exports(self) -> tuple[str, ...]:
        """Full names of the functions of bytecode modules."""
        programs = [module for module in self._modules if isinstance(module, BytecodeModule)]
        return tuple(f"{module.name}.{name}" for module in programs for name in module.exports)

    def lookup(self, name: str) -> Function:
        """A function by ``"function"`` (of a bytecode module, the last one first) or ``"module.function"``.

        Raises NotFound, listing what there is and the nearest name.
        """
        if self.closed:
            raise errors.FailedPrecondition("the context is closed")
        for module in reversed(self._modules):
            if isinstance(module, BytecodeModule) and name in module.ordinals:
                return self._function(module, name)
            local = name.removeprefix(f"{module.name}.")
            if local != name and local in _names(module):
                return self._function(module, local)
        raise errors.NotFound(self._no_function(name))

    def close(self) -> None:
        """Run ``__deinit`` of the modules, last first, and drop all state. Errors in ``__deinit`` are ignored."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _function(self, module: Module, name: str) -> Function:
        target, convention = _resolve(module, self._states, name)
        attrs: Mapping[str, str] = {}
        if isinstance(module, BytecodeModule):
            attrs = module.definition.signatures[module.ordinals[name]].attrs
        made = Function(self, module.name, name, convention, attrs, target)
        _functions.add(made)
        if _wrapper is not None:
            made.instrument(_wrapper)
        return made

    def _no_function(self, name: str) -> str:
        local = [full.partition(".")[2] for full in self.exports]
        near = difflib.get_close_matches(name, [*local, *self.exports], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"no function {name!r}; there is {', '.join(self.exports) or 'none'}{hint}"

    def _add(self, module: Module) -> None:
        if isinstance(module, NativeModule):
            module.take()
            self._modules.append(module)
            module.attach()
            return
        if not isinstance(module, BytecodeModule):
            raise errors.InvalidArgument(
                f"expected a NativeModule or BytecodeModule, found {type(module).__name__}"
            )
        if any(known is module for known in self._modules):
            raise errors.AlreadyExists(f"module {module.name} is in the context twice")
        state = _State(module, self._allocator)
        self._link(module, state)
        self._modules.append(module)
        self._states[id(module)] = state
        if "__init" in module.ordinals:
            self._function(module, "__init")()

    # Linking

    def _link(self, module: BytecodeModule, state: _State) -> None:
        self._check_dependencies(module)
        types: dict[str, type] = {}
        for native in self._modules:
            if isinstance(native, NativeModule):
                types.update(native.types)
        state.bind_types({**types, "vm.buffer": Buffer})
        for ordinal, imported in enumerate(module.definition.imports):
            state.bind_import(ordinal, imported, self._import(module, imported))

    def _find(self, name: str) -> Module | None:
        return next((module for module in reversed(self._modules) if module.name == name), None)

    def _check_dependencies(self, module: BytecodeModule) -> None:
        definition = module.definition
        if self._find("hal") is None:
            for imported in definition.imports:
                if imported.full_name.startswith("hal.") and not imported.optional:
                    raise errors.Incompatible(_FULL_HAL.format(name=module.name, imported=imported.full_name))
        for dependency in definition.dependencies:
            found = self._find(dependency.name)
            if dependency.optional or (found and found.version >= dependency.minimum_version):
                continue
            wanted = (
                f"module {module.name} needs module {dependency.name} version {dependency.minimum_version}"
            )
            if found is None:
                raise errors.NotFound(f"{wanted}, which is not in the context; it has {self._module_names()}")
            raise errors.Incompatible(f"{wanted} or newer, found version {found.version}")

    def _module_names(self) -> str:
        return ", ".join(module.name for module in self._modules) or "none"

    def _import(self, module: BytecodeModule, imported: ImportDef) -> Callable[..., Any] | None:
        module_name, _, name = imported.full_name.partition(".")
        found = self._find(module_name)
        if found is None or name not in _names(found):
            if imported.optional:
                return None
            raise errors.NotFound(self._no_import(module, imported, found))
        target, convention = _resolve(found, self._states, name)
        if imported.cconv and abi.CallingConvention.parse(imported.cconv) != convention:
            wanted = abi.CallingConvention.parse(imported.cconv)
            raise errors.Incompatible(
                f"import {imported.full_name} of module {module.name} has another signature: "
                f"expected {_signature(wanted)}, found {_signature(convention)}"
            )
        return target

    def _no_import(self, module: BytecodeModule, imported: ImportDef, found: Module | None) -> str:
        wanted = f"module {module.name} imports {imported.full_name} {imported.cconv}"
        if found is None:
            return f"{wanted}, but the context has no such module; it has {self._module_names()}"
        name = imported.full_name.partition(".")[2]
        near = difflib.get_close_matches(name, _names(found), n=1)
        hint = f"; nearest: {near[0]}" if near else ""
        return f"{wanted}, but module {found.name} version {found.version} has no such function{hint}"


def _signature(convention: abi.CallingConvention) -> str:
    return f"{convention} {abi.describe(convention.arguments)} -> {abi.describe(convention.results)}"


def _names(module: Module) -> Sequence[str]:
    return tuple(module.ordinals if isinstance(module, BytecodeModule) else module.exports)


def _resolve(
    module: Module, states: dict[int, _State], name: str
) -> tuple[Callable[..., Any], abi.CallingConvention]:
    """The Python callable of an export, and its calling convention."""
    if isinstance(module, NativeModule):
        return module.function(name), module.exports[name].cconv
    ordinal = module.ordinals[name]
    return states[id(module)].define(ordinal), module.translation.conventions[ordinal]


def _close_quietly(modules: list[Module], states: dict[int, _State]) -> None:
    """End a context: also runs when the last reference is dropped, and at interpreter exit."""
    for module in reversed(modules):
        if isinstance(module, BytecodeModule) and "__deinit" in module.ordinals:
            with contextlib.suppress(Exception):  # as IREE: nobody is left to hear of it
                states[id(module)].define(module.ordinals["__deinit"])()
    for state in states.values():
        state.close()
    for module in reversed(modules):
        if isinstance(module, NativeModule):
            module.detach()
    states.clear()
    modules.clear()


_open: weakref.WeakSet[Context] = weakref.WeakSet()
_functions: weakref.WeakSet[Function] = weakref.WeakSet()
_wrapper: Wrapper | None = None


def instrument(wrap: Wrapper | None) -> None:
    """Let programs call ``wrap(name, function)`` in place of each function of theirs and each import.

    For all contexts, those made later included; None ends it. Programs that are not instrumented pay nothing.
    While they are, a call holds its arguments to its end, so what the program drops early is freed a little later.
    """
    global _wrapper
    _wrapper = wrap
    for context in list(_open):
        for state in context._states.values():
            state.instrument(wrap)
    for function in list(_functions):
        function.instrument(wrap)


@atexit.register
def _close_at_exit() -> None:
    # Only daemon threads are left beside this one; one that is in a program needs its state until it is stopped.
    if threading.active_count() == 1:
        for context in list(_open):
            context._close.detach()  # weakref has stopped all finalizers by now
            _close_quietly(context._modules, context._states)
