"""Load a program and call its functions with arrays.

>>> module = halgpu.load("abs.vmfb", device="opencl")
>>> numpy.asarray(module.abs(numpy.array([-2, 3], numpy.float32)))
array([2., 3.], dtype=float32)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from halgpu import arguments as conversion
from halgpu import environment, errors, lost_constants, signature, vm
from halgpu.default_device import open_device
from halgpu.errors import nearest
from halgpu.text import counted, located
from halgpu.vm.support import NullReference

if TYPE_CHECKING:
    from halgpu.devices import Device

PROVIDED = ("hal_inline", "hal_loader", "vmvx")
"""Native modules that a program may import."""


class MissingFunction(errors.NotFound, AttributeError):
    """A module has no function of that name."""


class WrongCall(errors.InvalidArgument, TypeError):
    """A function is called with too few or too many arguments, or with keywords."""


Native: TypeAlias = "vm.NativeModule | type[vm.NativeModule]"
Linked: TypeAlias = "vm.BytecodeModule | Native"
Progress = Callable[[str, int, int], None]
"""Told of each step of a load: what, its number from 1 on, how many there are."""


def load(
    source: Any,
    device: Device | str | None = None,
    *,
    dependencies: Sequence[Any] = (),
    native: bool | None = None,
    progress: Progress = lambda what, number, count: None,
) -> Module:
    """Load a compiled inline-HAL program (.vmfb) and run its initializer.

    ``source`` is a path, which is mapped and may be deleted afterwards, or any contiguous bytes-like object
    (bytes, bytearray, memoryview at any offset, mmap), which is not copied and must not change while in use.
    ``device`` is a URI such as ``"opencl:1"``, a Device, or None for $HALGPU_DEVICE, else ``"opencl"``.
    ``dependencies`` are what ``source`` imports functions of: programs, of the same kinds, and native modules
    (:class:`halgpu.vm.NativeModule`), in an order in which each imports from those before it only. A native module
    is an instance, for this load alone, or its class, of which each context makes an instance of its own.
    ``native`` false refuses programs whose kernels are native code of the host, which may do all that this process
    may; None asks $HALGPU_NATIVE, else takes them. ``progress`` is called with each step of the load, such as
    ``("building 45 kernels", 2, 2)``, as it begins.

    Each load has its own state: mutable globals start over. Raises an :class:`halgpu.Error` for anything that
    is no such program or cannot run on the device.
    """
    _warn_of_misspelled_variables()
    needed = [item if _is_native(item) else vm.BytecodeModule.load(item) for item in dependencies]
    return Module([*needed, vm.BytecodeModule.load(source)], open_device(device), progress, native)


def _warn_of_misspelled_variables() -> None:
    """HALGPU_CHEKED=1 would check nothing."""
    for line in environment.misspelled():
        warnings.warn(line, RuntimeWarning, stacklevel=3)


class Module:
    """A loaded program with its state. Functions are attributes and items: ``module.abs``, ``module["abs"]``.

    A function whose name is one of this class (``close``) or begins with ``_`` is an item only.

    ``functions`` maps names to functions, ``name`` is the program's, ``device`` where it runs. Calls change
    the program's mutable globals; :meth:`new_context` starts over. Also a context manager that closes it.
    One thread at a time may call into a module.
    """

    def __init__(
        self,
        modules: Sequence[Linked],
        device: Device,
        progress: Progress = lambda what, number, count: None,
        native: bool | None = None,
    ) -> None:
        """Use :func:`load`."""
        self._modules = tuple(modules)
        self._programs = tuple(module for module in modules if isinstance(module, vm.BytecodeModule))
        self._device = device
        self._native = native
        self._functions: dict[str, Function] = {}
        self._context = _link(self._modules, self._programs, device, progress, native)
        main = self._programs[-1]
        self._names = tuple(name for name in main.exports if not name.startswith("__") and "$" not in name)

    @property
    def name(self) -> str:
        """The program's name: that of the MLIR module."""
        return self._programs[-1].name

    @property
    def device(self) -> Device:
        """The device that the program runs on."""
        return self._device

    @property
    def functions(self) -> Mapping[str, Function]:
        """The program's public functions by name, in the program's order."""
        return MappingProxyType({name: self[name] for name in self._names})

    def __getitem__(self, name: str) -> Function:
        try:
            return self._functions[name]
        except KeyError:
            return self._lookup(name)

    def _lookup(self, name: str) -> Function:
        if name not in self._names:
            raise MissingFunction(
                f"module '{self.name}' has no function '{name}'{nearest(name, self._names)}; "
                f"it has: {', '.join(self._names) or 'none'}"
            )
        if self._context.closed:
            raise _closed(self.name)
        function = self._context.lookup(f"{self.name}.{name}")
        made = self._functions[name] = Function(name, function, self._device, self._programs)
        return made

    def __getattr__(self, name: str) -> Function:
        if name.startswith("_"):
            names = self.__dict__.get("_names", ())  # not there before __init__ has set it
            hint = f"; its function of that name is module['{name}']" if name in names else ""
            raise AttributeError(f"the module has no attribute '{name}'{hint}")
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._names})

    def __repr__(self) -> str:
        names = ", ".join(self._names) or "no functions"
        state = ", closed" if self._context.closed else ""
        return f"<Module {self.name} on {self._device.uri}: {names}{state}>"

    def new_context(self) -> Module:
        """The same program on the same device with a state of its own: its globals start over.

        Raises FailedPrecondition when a native module it imports from was given as an instance: give its class.
        """
        return Module(self._modules, self._device, native=self._native)

    def close(self) -> None:
        """End the program's state and free its buffers; a second call does nothing. Results stay usable."""
        self._context.close()
        self._functions.clear()

    def __enter__(self) -> Module:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Function:
    """A function of a loaded program; call it with one value for each parameter.

    ``signature`` (:class:`halgpu.signature.Signature`) has parameters and results. Arrays of any strides and
    byte order go to the device; :class:`BufferView` arguments are not copied. The result is one value, a
    tuple of them, or None: a BufferView for a tensor, a Python number for a scalar.
    """

    __slots__ = (
        "__weakref__", "_call", "_converters", "_decode", "_function", "_programs", "name", "signature",
    )  # fmt: skip

    def __init__(
        self, name: str, function: vm.Function, device: Device, programs: Sequence[vm.BytecodeModule]
    ) -> None:
        """Use ``module[name]``."""
        self.name = name
        self._function = function
        self._call = function.__call__
        self._programs = programs
        self.signature = signature.of_function(function.cconv, function.attrs)
        self._converters = tuple(conversion.converter(value, device) for value in self.signature.parameters)
        self._decode = _decoder(self.signature.results)

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the function with one positional argument for each parameter of ``signature``.

        A tensor takes what numpy makes an array of its element type and shape of, a BufferView, or None for a
        null reference; a scalar takes a Python or numpy number. Returns None, one result, or a tuple of them.
        Raises WrongCall for a wrong number of arguments, InvalidArgument for one that does not fit its
        parameter, FailedPrecondition when the module was closed, and what the program raises, whose ``frames``
        are the program's stack.
        """
        converters = self._converters
        if keywords or len(arguments) != len(converters):
            raise _wrong_call(self, len(arguments), keywords)
        values = [convert(value) for convert, value in zip(converters, arguments, strict=True)]
        try:
            results = self._call(*values)
        except errors.Error as error:
            _explain(self, error, values)
            raise
        decode = self._decode
        return results if decode is None else decode(results)

    def __repr__(self) -> str:
        return f"<Function {self.name}{self.signature}>"


def invoke(function: Function, values: Sequence[Any]) -> tuple[Any, ...]:
    """Call with values as the VM passes them, and return its results, without any conversion."""
    try:
        results = function._call(*values)
    except errors.Error as error:
        _explain(function, error, values)
        raise
    return function._function.as_tuple(results)


def wrong_count(function: Function, found: int, suffix: str = "") -> WrongCall:
    """The error of a call with ``found`` arguments."""
    parameters = function.signature.parameters
    listed = f" ({', '.join(map(str, parameters))})" if parameters else ""
    return WrongCall(
        f"function '{function.name}': expected {counted(len(parameters), 'argument')}{listed}, found {found}{suffix}"
    )


def _wrong_call(function: Function, found: int, keywords: Iterable[str]) -> WrongCall:
    named = ", ".join(f"{name}=" for name in keywords)
    return wrong_count(function, found, f" and {named}; pass all by position" if named else "")


def _explain(function: Function, error: errors.Error, values: Sequence[Any]) -> None:
    """Add the likely cause to the error of a call; raise another one when the module was closed.

    The caller raises it again: an exception raised where a local names it would keep itself, and with it all
    that the call held, until a garbage collection.
    """
    if function._function.closed:
        raise _closed(function._function.module_name) from None
    # A null of the caller's own explains itself.
    if isinstance(error, NullReference) and not any(value is None for value in values):
        lost_constants.explain(error, function._programs)


def _closed(name: str) -> errors.FailedPrecondition:
    return errors.FailedPrecondition(
        f"module '{name}' was closed (by close() or the end of a with block); load it again"
    )


def _decoder(results: Sequence[signature.Value]) -> conversion.Converter | None:
    """What turns the VM's results into the user's; None where they are the same."""
    decoders = tuple(map(conversion.result_converter, results))
    if not any(decoders):
        return None
    if len(decoders) == 1:
        return decoders[0]
    return lambda values: tuple(
        value if decode is None else decode(value) for decode, value in zip(decoders, values, strict=True)
    )


# Linking ----------------------------------------------------------------------------------------------


def _is_native(item: Any) -> TypeGuard[Native]:
    """Whether a dependency is a native module, or the class of one."""
    return isinstance(item, vm.NativeModule) or (isinstance(item, type) and issubclass(item, vm.NativeModule))


def _link(
    modules: Sequence[Linked],
    programs: Sequence[vm.BytecodeModule],
    device: Device,
    progress: Progress,
    native: bool | None,
) -> vm.Context:
    from halgpu.modules.hal_inline import HalInline
    from halgpu.modules.hal_loader import HalLoader
    from halgpu.modules.vmvx import Vmvx

    names = set(PROVIDED)
    for module in modules:
        if isinstance(module, vm.BytecodeModule):
            _check_dependencies(module, names)
        names.add(module.name)
    loader = HalLoader(device, native)
    progress("loading the program", 1, 2)
    try:
        instances = [module() if isinstance(module, type) else module for module in modules]
        context = vm.Context([HalInline(device, native), loader, Vmvx(), *instances])
    except NullReference as error:
        lost_constants.explain(error, programs)
        raise
    except errors.Unavailable as error:
        # The program itself fails so, without details, when it found none of its formats supported.
        if not loader.asked:
            raise
        raise errors.Unavailable(
            f"{located(error)}: it offers {', '.join(loader.asked)}; {_remedy(device, loader.asked, native)}",
            frames=error.frames,
        ) from error
    try:
        if loader.waiting:
            progress(f"building {counted(loader.waiting, 'kernel')}", 2, 2)
        loader.build()
    except BaseException:
        context.close()
        raise
    return context


def _remedy(device: Device, offered: Sequence[str], native: bool | None) -> str:
    from halgpu.executables import registry

    return registry.remedy(device, offered, native)


def _check_dependencies(program: vm.BytecodeModule, available: set[str]) -> None:
    definition = program.definition
    needed = {item.name for item in definition.dependencies if not item.optional}
    needed |= {item.full_name.partition(".")[0] for item in definition.imports if not item.optional}
    missing = sorted(needed - available)
    if "hal" in missing:
        raise errors.Incompatible(
            f"module '{program.name}' was compiled for the full HAL (it imports hal.*), but halgpu runs "
            "inline HAL programs: compile it with 'halgpu compile', or iree-compile and "
            "--iree-execution-model=inline-dynamic --iree-hal-target-device=vulkan"
        )
    if missing:
        raise errors.Incompatible(
            f"module '{program.name}' imports {', '.join(missing)}, which is not there; "
            f"there are: {', '.join(sorted(available))}"
        )


__all__ = ["Function", "MissingFunction", "Module", "WrongCall", "load"]
