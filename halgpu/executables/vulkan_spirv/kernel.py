"""One entry point: its arguments and variables, and the text of the kernel around its statements."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from halgpu import errors
from halgpu.devices.base import BindingLayout, KernelLayout
from halgpu.devices.checks import Checks

from . import (
    checked,
    components,
    ctypes,
    library,
    literals,
    lost_barriers,
    own_elements,
    ranges,
    strip_mining,
    usage,
    workitems,
)
from . import spirv_types as ty
from .executable_def import PipelineDef
from .expressions import Expr, Place, Pointer
from .matrices import Matrices, component_types
from .module import EntryPoint, Module, Variable
from .names import Names
from .places import (
    Binding,
    BufferPlace,
    BuiltInPlace,
    PushPlace,
    Root,
    VariablePlace,
    unwrap,
    variable_declaration,
)
from .source import Source
from .spirv_table import BuiltIn, Decoration, Mode, Storage
from .structure import Structure
from .subgroups import Subgroups
from .tree import INDENT, Local, Loop, Scope, declare, form_for, render, walk, words

MAXIMUM_INSTRUCTIONS: Final = 1 << 18
"""Instructions emitted for a kernel, calls counted each time."""

_BUILTINS: Final = {
    BuiltIn.NUM_WORKGROUPS: ("groups", "get_num_groups"),
    BuiltIn.WORKGROUP_ID: ("group", "get_group_id"),
    BuiltIn.LOCAL_INVOCATION_ID: ("local", "get_local_id"),
    BuiltIn.GLOBAL_INVOCATION_ID: ("global", "get_global_id"),
}
_SAME_FOR_GROUP: Final = frozenset({BuiltIn.NUM_WORKGROUPS, BuiltIn.WORKGROUP_SIZE, BuiltIn.WORKGROUP_ID})
_MODES: Final = frozenset(Mode)


class Kernel:
    """A kernel under translation."""

    def __init__(self, source: Source, module: Module, entry: EntryPoint, definition: PipelineDef) -> None:
        self.source = source
        self.module = module
        self.entry = entry
        self.pipeline = pipeline = definition.layout
        self.definition = definition
        self.pipeline_subgroup_size = definition.subgroup_size
        self.what = f"{module.what}: kernel {entry.name}"
        self.function = module.functions[entry.function]
        self.name = source.names.unique(entry.name, "kernel")
        self.names = Names(source.names)
        self.usage = usage.analyze(module, self.function)
        self.workgroup_size = self._workgroup_size()
        self.launched_size = (1, 1, 1) if self._does_all_alike() else self.workgroup_size
        """The workgroup size of the OpenCL kernel."""
        self.bindings = [Binding(ordinal) for ordinal in range(len(pipeline.bindings))]
        self.locals: list[Local] = []
        self.loops: list[Loop] = []
        self.epochs: defaultdict[object, int] = defaultdict(int)
        self.prologue: list[str] = []
        self.declarations: list[str] = []
        self._shared: dict[str, ty.Type] = {}
        """Declarations of workgroup memory -> the types that they declare."""
        self.scope = Scope(None)
        self.measures = False
        self.volatile = False
        """It reads memory that has to be read as often, and in the order, as the module says."""
        self.apart = ""
        """The name of the second text for bindings that are apart (KernelLayout.apart)."""
        self.recorder = checked.Recorder(self) if source.checked else None
        self._spent = 0
        self._repaired = False
        self._builtins: dict[tuple[int, int], Expr] = {}
        self._local_ids: dict[int, str] = {}
        self._starts: dict[str, str] = {}
        """Names of built-in variables' components -> what they begin as."""
        self._subgroups: Subgroups | None = None
        self._matrices: Matrices | None = None
        for binding in self.bindings:
            self.names.reserve(f"b{binding.ordinal}")
        if source.checked:
            self.names.reserve("report")
        self._note_elements()
        source.lanes = self.matrices.lanes if module.cooperates else 1

    # --- budget, names, memory ----------------------------------------------------------------------------

    def spend(self, instructions: int) -> None:
        """Account for emitted instructions."""
        self._spent += instructions
        if self._spent > MAXIMUM_INSTRUCTIONS:
            raise errors.ResourceExhausted(
                f"{self.what}: more than {MAXIMUM_INSTRUCTIONS} instructions in a kernel"
            )

    def local(self, name: str, specifier: str, *, track: bool = False) -> Local:
        """A new local variable."""
        local = Local(self.names.reserve(name), specifier, track=track)
        self.locals.append(local)
        return local

    def memory(self, group: object) -> tuple[tuple[object, int], ...]:
        """What an expression that reads ``group`` now depends on."""
        return () if group is None else ((group, self.epochs[group]),)

    def touch_memory(self, group: object = None) -> None:
        """Memory of a group, or all of it, may have changed."""
        if group is not None:
            self.epochs[group] += 1
            return
        for known in self.epochs:
            self.epochs[known] += 1

    # --- variables ----------------------------------------------------------------------------------------

    def variable(self, id_: int) -> Pointer:
        """The pointer that a variable of module scope is."""
        variable = self.module.variables[id_]
        storage = variable.storage
        if storage in (Storage.STORAGE_BUFFER, Storage.UNIFORM):
            place: Place = BufferPlace(self._binding(variable))
        elif storage == Storage.PUSH_CONSTANT:
            place = PushPlace()
        elif storage == Storage.INPUT:
            place = self._builtin(variable)
        elif storage == Storage.WORKGROUP:
            place = self._workgroup(variable)
        elif storage == Storage.PRIVATE:
            place = self.private(variable)
        else:
            name = next((s.name.lower() for s in Storage if s == storage), str(storage))
            raise errors.Unimplemented(f"{self.what}: SPIR-V storage class {name} is not supported")
        volatile = self.module.decoration(id_, Decoration.VOLATILE) is not None
        return Pointer(place, variable.type, volatile=volatile)

    def private(self, variable: Variable) -> VariablePlace:
        """A variable of Private or Function storage; one that holds one constant becomes a table."""
        type_ = unwrap(variable.type)
        given = self.module.names.get(variable.id)
        constant = self.usage.constants.get(variable.id)
        name = self._table(constant, given or f"table_{variable.id}") if constant is not None else None
        if name is not None:
            return _whole(Root(name, "__constant", type_, None), type_)
        name = self.names.unique(given or f"var_{variable.id}", "var")
        start = f" = {self._start(variable.initializer)}" if variable.initializer else ""
        self.declarations.append(variable_declaration(self.source, variable, name) + start)
        return _whole(Root(name, "__private", type_, name, type_ is not variable.type), variable.type)

    def _table(self, constant: ty.Constant, name: str) -> str | None:
        """The C lvalue of a constant array in program scope; None where C cannot write it there."""
        text = literals.initializer(self.source, constant)
        if literals.is_constant_expression(text):
            return self.source.table(constant, text, name)
        integers = literals.as_integers(constant)
        if integers is None:
            return None
        text = literals.initializer(self.source, integers)
        chosen = self.source.table(constant, text, name, integers.type)
        return f"(*(__constant {self.source.declarator(constant.type, '(*)')})&{chosen})"

    def _start(self, constant: ty.Constant) -> str:
        """The initializer of a variable declared as :func:`variable_declaration` does."""
        inner = unwrap(constant.type)
        return literals.initializer(
            self.source, constant if inner is constant.type else constant.part(0, inner)
        )

    def _workgroup(self, variable: Variable) -> VariablePlace:
        type_ = unwrap(variable.type)
        name = self.names.unique(self.module.names.get(variable.id, f"shared_{variable.id}"), "shared")
        self.declare_local(name, type_)
        if variable.initializer is not None:
            raise errors.Unimplemented(f"{self.what}: initializers of workgroup memory are not supported")
        return _whole(Root(name, "__local", type_, name, type_ is not variable.type), variable.type)

    def declare_local(self, name: str, type_: ty.Type) -> None:
        """Declare a variable in workgroup memory."""
        declaration = f"__local {self.source.declarator(type_, name)}"
        self._shared[declaration] = type_
        self.declarations.append(declaration)

    @property
    def local_memory(self) -> int:
        """Bytes of workgroup memory."""
        size = 0
        for type_ in self._shared.values():
            align = max(ty.alignment(type_), 1)
            size = -(-size // align) * align + ty.byte_size(type_)
        return size

    @property
    def subgroups(self) -> Subgroups:
        """What subgroup instructions need."""
        if self._subgroups is None:
            self._subgroups = Subgroups(self)
        return self._subgroups

    @property
    def matrices(self) -> Matrices:
        """What cooperative matrices need."""
        if self._matrices is None:
            self._matrices = Matrices(self)
        return self._matrices

    def _builtin(self, variable: Variable) -> BuiltInPlace:
        found = self.module.decoration(variable.id, Decoration.BUILT_IN)
        if not found:
            raise errors.Unimplemented(f"{self.what}: an input variable that is no built-in is not supported")
        return BuiltInPlace(found[0])

    def builtin(self, number: int, component: int) -> Expr:
        """A component of a built-in variable: a local that the kernel begins with."""
        known = self._builtins.get((number, component))
        if known is None:
            known = self._builtins[number, component] = self._declare_builtin(number, component)
        return known

    def _declare_builtin(self, number: int, component: int) -> Expr:
        x, y, z = self.workgroup_size
        if number == BuiltIn.WORKGROUP_SIZE:
            return Expr(ty.INTS[32], f"{self.workgroup_size[component]}u")
        if number in _BUILTINS:
            prefix, function = _BUILTINS[BuiltIn(number)]
            letter = ctypes.COMPONENTS[component]
            # Outside of the dimensions that the workgroup spans the answer is known.
            fixed = number == BuiltIn.LOCAL_INVOCATION_ID and self.workgroup_size[component] == 1
            text = "0" if fixed else f"{function}({component})"
            expr = self._begin_with(f"{prefix}_{letter}", text)
            if number == BuiltIn.LOCAL_INVOCATION_ID and not fixed:
                self._local_ids[component] = expr.text
            return expr
        if number == BuiltIn.LOCAL_INVOCATION_INDEX:
            i, j, k = (self.builtin(BuiltIn.LOCAL_INVOCATION_ID, axis).text for axis in range(3))
            text = i if y == z == 1 else f"{i} + {x}u * {j}" if z == 1 else f"{i} + {x}u * ({j} + {y}u * {k})"
            return self._begin_with("local_index", text)
        return self._subgroup_builtin(number)

    def _subgroup_builtin(self, number: int) -> Expr:
        if number not in (
            BuiltIn.SUBGROUP_SIZE, BuiltIn.NUM_SUBGROUPS, BuiltIn.SUBGROUP_ID, BuiltIn.SUBGROUP_LOCAL_INVOCATION_ID,
        ):  # fmt: skip
            raise errors.Unimplemented(f"{self.what}: built-in variable {number} is not supported")
        size, total = self.subgroups.size, self.subgroups.total
        if number == BuiltIn.SUBGROUP_SIZE:
            return Expr(ty.INTS[32], f"{size}u")
        if number == BuiltIn.NUM_SUBGROUPS:
            return Expr(ty.INTS[32], f"{-(-total // size)}u")
        if number == BuiltIn.SUBGROUP_ID:
            return self._begin_with("subgroup", f"{self.subgroups.index} / {size}u")
        return self._begin_with("subgroup_lane", f"{self.subgroups.index} % {size}u")

    def _begin_with(self, name: str, text: str) -> Expr:
        chosen = self.names.unique(name)
        self._starts[chosen] = text
        return Expr(ty.INTS[32], chosen)

    # --- bindings -----------------------------------------------------------------------------------------

    def _buffers(self) -> list[Variable]:
        return [
            variable
            for variable in self.module.variables.values()
            if variable.storage in (Storage.STORAGE_BUFFER, Storage.UNIFORM)
            and variable.id in self.usage.named
        ]

    def _note_elements(self) -> None:
        matrix_elements = component_types(self.module, self.usage)
        for variable in self._buffers():
            binding = self._binding(variable)
            _collect(variable.type, binding.elements)
            binding.elements |= matrix_elements[variable.id]
            binding.reads |= variable.id in self.usage.reads
            binding.writes |= variable.id in self.usage.writes

    def _binding(self, variable: Variable) -> Binding:
        set_ = self.module.decoration(variable.id, Decoration.DESCRIPTOR_SET) or (0,)
        number = self.module.decoration(variable.id, Decoration.BINDING)
        if not number or not isinstance(variable.type, ty.Struct):
            raise errors.Unimplemented(
                f"{self.what}: a buffer that is no block with a binding (%{variable.id}) is not supported"
            )
        try:
            ordinal = self.pipeline.bindings.index((set_[0], number[0]))
        except ValueError:
            raise errors.InvalidArgument(
                f"{self.what}: its SPIR-V uses binding {number[0]} of set {set_[0]}, "
                f"which its pipeline layout does not have"
            ) from None
        return self.bindings[ordinal]

    def view(self, binding: Binding) -> str:
        """The name of the typed pointer to a binding, declared on first use."""
        unit = binding.unit(half=self.source.half)
        self.source.check_element(unit)
        element = ctypes.scalar_name(unit, half=self.source.half)
        if element not in binding.views:
            kind = {"read": "in", "write": "out", "readwrite": "io"}[binding.access]
            name = self.names.unique(self._given(binding) or f"{kind}{binding.ordinal}", "buffer")
            const = "" if binding.writes else "const "
            pointer = f"{const}__global {element} *"
            start = f"b{binding.ordinal} + p.offsets[{binding.ordinal}]"
            self.prologue.append(f"{pointer}{name} = ({pointer})({start});")
            binding.views[element] = name
        return binding.views[element]

    def length(self, binding: Binding) -> str:
        """The byte length of a binding as C, of type ulong."""
        self.measures = True
        return f"p.lengths[{binding.ordinal}]"

    def _given(self, binding: Binding) -> str | None:
        """A name that a person gave: the compiler's own say no more than set and binding."""
        for variable in self._buffers():
            name = self.module.names.get(variable.id, "")
            if name and not name.startswith("__resource_var") and self._binding(variable) is binding:
                return name
        return None

    # --- the whole ----------------------------------------------------------------------------------------

    def _workgroup_size(self) -> tuple[int, int, int]:
        for mode in self.entry.modes:
            if mode not in _MODES:
                raise errors.Unimplemented(f"{self.what}: SPIR-V execution mode {mode} is not supported")
        if Mode.DENORM_FLUSH_TO_ZERO in self.entry.modes:
            raise errors.Unimplemented(
                f"{self.what}: SPIR-V execution mode DenormFlushToZero is not supported"
            )
        size = self._declared_size()
        if len(size) != 3 or not all(size):
            raise errors.InvalidArgument(f"{self.what}: malformed SPIR-V: workgroup size {size}")
        return size[0], size[1], size[2]

    def _declared_size(self) -> tuple[int, ...]:
        """The size by the WorkgroupSize constant if there is one, which counts more than the mode."""
        for id_, decorations in self.module.decorations.items():
            if decorations.get(Decoration.BUILT_IN) == (BuiltIn.WORKGROUP_SIZE,):
                constant = self.module.constants.get(id_)
                if constant is not None and isinstance(constant.value, tuple):
                    return tuple(
                        int(part.value or 0) for part in constant.value if not isinstance(part.value, tuple)
                    )
        if Mode.LOCAL_SIZE_ID in self.entry.modes:
            return tuple(map(self._size_constant, self.entry.modes[Mode.LOCAL_SIZE_ID]))
        return self.entry.modes.get(Mode.LOCAL_SIZE, (1, 1, 1))

    def _size_constant(self, id_: int) -> int:
        constant = self.module.constants.get(id_)
        if constant is None or not isinstance(constant.type, ty.Int) or isinstance(constant.value, tuple):
            raise errors.InvalidArgument(f"{self.what}: malformed SPIR-V: LocalSizeId %{id_} is no constant")
        return int(constant.value or 0)

    def _does_all_alike(self) -> bool:
        """Whether all work-items of a group do the same, so that one is enough.

        Stock iree-compile makes such kernels where it found nothing to share among the work-items of its usual
        workgroup. Atomics happen once for each invocation (SPIR-V specification, section 3.3.18), so that they
        keep theirs.
        """
        return not self.usage.synchronizes and self.builtins_used() <= _SAME_FOR_GROUP

    def builtins_used(self) -> set[int]:
        """The built-in variables that the kernel's instructions name."""
        found = (self.module.decoration(id_, Decoration.BUILT_IN) for id_ in self.usage.named)
        return {builtin[0] for builtin in found if builtin}

    def _widen_indices(self) -> None:
        """Compute indices in 64 bits where that is the same."""

        def extend() -> str:
            return self.source.helper("wide", ranges.WIDE)

        known = self._known_ranges()
        apart = set(self._local_ids.values())
        same = [
            name
            for name, text in self._starts.items()
            if name not in apart and apart.isdisjoint(words(text)) and "get_global_id" not in text
        ]
        ranges.widen(self.scope, self.locals, known, same, extend)

    def _known_ranges(self) -> dict[str, ranges.Interval]:
        """The values that the names of ``_starts`` may have."""
        found: dict[str, ranges.Interval] = {}
        for name, text in self._starts.items():
            axis = next((axis for axis, local_id in self._local_ids.items() if local_id == name), None)
            size = self.workgroup_size[axis] if axis is not None else None
            found[name] = (0, size - 1) if size else ranges.known(text, found)
        return found

    def barriers(self, tree: Structure) -> set[int]:
        """What barriers have to come before that the compiler left out (see ``lost_barriers``)."""
        if self.launched_size == (1, 1, 1):
            return set()
        found = lost_barriers.barriers(self.module, self.function, tree, self.usage, in_turn=self.source.cpu)
        self._repaired = bool(found)
        return found

    def _drop_idle_axes(self) -> None:
        """Leave out work-items that do what others do, since nothing tells them apart.

        Stock kernels have them where a small result leaves an axis of the workgroup without work. They add to the
        same element each, which is right only as long as they do so at the same time, and for nothing then.
        """
        told_apart = _SAME_FOR_GROUP | {BuiltIn.LOCAL_INVOCATION_ID}
        if self.usage.synchronizes or self.module.cooperates or not self.builtins_used() <= told_apart:
            return
        x, y, z = (size if axis in self._local_ids else 1 for axis, size in enumerate(self.launched_size))
        self.launched_size = x, y, z

    def _keep_own_elements(self) -> None:
        """Turn workgroup memory that no two work-items share into variables."""
        if self.usage.synchronizes or self._repaired or self.recorder is not None:
            return
        for array in own_elements.arrays(self.declarations):
            variable = own_elements.replace(self.scope, array, self.locals, {*self._starts, "p"})
            if variable is not None:
                self.locals.append(variable)
                self.declarations.remove(array.declaration)
                del self._shared[array.declaration]

    def _split_vectors(self) -> None:
        """Take vectors apart where the compiler makes longer ones of their components."""

        def scalar_fma() -> str:
            return library.function(self.source, "fma", ty.FLOATS[32])

        new = components.split(self.scope, self.locals, self.declarations, self.names, scalar_fma)
        if new is not None:
            self.locals, self.declarations = new

    def _loop_over_work_items(self) -> None:
        """Turn the kernel inside out where that lets its loops become vector instructions."""
        group = self._work_group()
        if group is None:
            return
        arrays = workitems.rewrite(self.scope, self.locals, group)
        if arrays is None:
            return
        for name in (*group.ids.values(), *group.derived):
            del self._starts[name]
        self.declarations += arrays
        self.launched_size = (1, 1, 1)

    def _work_group(self) -> workitems.WorkGroup | None:
        """What loops over the work-items need to know; None for kernels that they are not possible for.

        Workgroup memory rules them out: stock iree-compile has each work-item initialize all of an array and go
        on without a barrier, which is right only as long as a work-item is done before the next one begins.
        """
        ids = self._local_ids
        if not ids or self.declarations or self.usage.synchronizes or self._repaired:
            return None
        known = _SAME_FOR_GROUP | {BuiltIn.LOCAL_INVOCATION_ID, BuiltIn.LOCAL_INVOCATION_INDEX}
        if not self.builtins_used() <= known:
            return None
        derived = {
            name: text for name, text in self._starts.items() if not set(ids.values()).isdisjoint(words(text))
        }
        # Any binding may be the memory that another one writes.
        views = (name for binding in self.bindings for name in binding.views.values())
        return workitems.WorkGroup(self.workgroup_size, ids, derived, frozenset(views))

    def _strip_mine(self) -> None:
        """Take loops that add up floats in order several passes at a time."""
        if not self.usage.synchronizes and not self.volatile:
            extrema = self.source.helpers("max", "min")
            strip_mining.rewrite(self.scope, self.names.reserve, extrema)

    def text(self) -> str:
        """The kernel as C, once its statements were emitted."""
        for loop in self.loops:
            form_for(loop)
        self._drop_idle_axes()
        self._keep_own_elements()
        if self.source.cpu:
            self._widen_indices()
            self._split_vectors()
            self._loop_over_work_items()
        declare(self.locals)
        if self.source.cpu:
            self._strip_mine()
        if self._gains_apart():
            self.apart = self.source.names.unique(f"{self.entry.name}_apart", "kernel")
        size = ", ".join(map(str, self.launched_size))
        starts = (f"const uint {name} = {text};" for name, text in self._starts.items())
        body = [*starts, *self.prologue, *(f"{declaration};" for declaration in self.declarations)]
        lines = ["{", *(INDENT + line for line in body), *render(self.scope, INDENT), "}"]
        return "\n\n".join(
            "\n".join(
                [
                    f"__kernel __attribute__((reqd_work_group_size({size})))",
                    f"void {name}({self._parameters(qualifier)})",
                    *lines,
                ]
            )
            for name, qualifier in ((self.name, ""), (self.apart, "restrict "))
            if name
        )

    def _gains_apart(self) -> bool:
        """Whether a second text is worth its while, of the same statements on pointers that are `restrict`.

        That is for loops on CPUs, which write to one binding what they compute of others.
        """
        return (
            self.source.cpu
            and len(self.bindings) > 1
            and any(binding.writes for binding in self.bindings)
            and not self.measures
            and any(isinstance(statement, Loop) for statement in walk(self.scope))
        )

    def _parameters(self, qualifier: str) -> str:
        parameters = [
            f"{'' if binding.writes else 'const '}__global uchar *{qualifier}b{binding.ordinal}"
            for binding in self.bindings
        ]
        if self._checks() is not None:
            parameters.append(f"volatile __global {checked.report_type(self.source)} *report")
        arguments = self.source.arguments(len(self.bindings), self.pipeline.constants, lengths=self.measures)
        return ", ".join([*parameters, *([f"const {arguments} p"] if arguments else [])])

    def _checks(self) -> Checks | None:
        return None if self.recorder is None else self.recorder.checks()

    def layout(self) -> KernelLayout:
        """How the kernel is called."""
        return KernelLayout(
            name=self.name,
            constants=self.pipeline.constants,
            bindings=tuple(BindingLayout(b.access, b.alignment) for b in self.bindings),
            workgroup_size=self.launched_size,
            local_memory=self.local_memory,
            lengths=self.measures,
            checks=self._checks(),
            apart=self.apart,
        )


def _whole(root: Root, type_: ty.Type) -> VariablePlace:
    return VariablePlace(root, Expr(type_, root.name))


def _collect(type_: ty.Type, into: set[ty.Scalar]) -> None:
    """Gather the scalar types that a type is made of."""
    waiting, seen = [type_], set()
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        if isinstance(at, (ty.Array, ty.RuntimeArray, ty.Vector)):
            waiting.append(at.element)
        elif isinstance(at, ty.Struct):
            waiting.extend(at.members)
        elif isinstance(at, (ty.Int, ty.Float)):
            into.add(at)
