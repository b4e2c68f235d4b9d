"""Repairs a program after ``--compile-to=input`` of iree-compile 3.13, in the child process of ``worker``.

What stands here comes from models: PyTorch's operators, and ONNX's by way of them, are linalg by now.

1. *Narrowed constants.* ``arith.truncf`` of a constant is folded. PyTorch's and ONNX's scalars are 64-bit floats. MLIR
   folds only what loses no precision (mlir/lib/Dialect/Arith/IR/ArithOps.cpp, TruncFOp::fold), and the virtual
   machine, which evaluates constants at compile time too, has no such conversion (Dialect/VM/Conversion/ArithToVM).
2. *Samples outside of an image.* torch-mlir's lowering of ``aten.grid_sampler`` compares one of two neighbours with
   the image's first row and the other with its last, so that points beyond its edges make it read far outside of the
   image (torch-mlir, lib/Conversion/TorchToLinalg/Uncategorized.cpp). An element at a place that is computed from
   floats is taken from inside of its tensor now; outside there are zeros.
3. *One element written outside of kernels*, of a tensor of rank 2 or more: the compiler takes for the length of what
   it writes the place where the element at (1, 1, ...) would lie, so that what follows is overwritten, or the end of
   the tensor passed. A slice of one element is put in now; a tensor made of elements is made in one dimension.
4. *The dialect index*, for Vulkan kernels, which it does not become: arith has the same operations. TOSA's Fourier
   transforms have them.
5. *Rows gathered by StableHLO*: an index out of range means the nearest row (StableHLO's specification, "gather"), but
   where a slice has one row the compiler takes the index as it is, and what lies outside of the tensor.
6. *Functions of 64-bit floats*, for Vulkan kernels, which have none (see ``wide_math``), and operations on narrow
   integers and bf16 (see ``narrow_math``).
"""

from __future__ import annotations

from typing import Any

from halgpu.compiler import bindings, narrow_math, wide_math

_LOWER = frozenset({"arith.maxsi", "arith.maximumf", "arith.maxnumf"})
_UPPER = frozenset({"arith.minsi", "arith.minimumf", "arith.minnumf"})


def repair(module: Any, *, vulkan: bool, stablehlo: bool = False) -> dict[str, int]:
    """Repair ``module``, an operation builtin.module of iree.compiler.ir, in place, with its context entered.

    ``vulkan`` says that its kernels are going to be Vulkan's, ``stablehlo`` that it was StableHLO. Returns how many
    operations of each kind there were.
    """
    repairs = {**_REPAIRS, **(_VULKAN_REPAIRS if vulkan else {})}
    if stablehlo:
        repairs["tensor.extract"] = _clamp
    found = bindings.find(module, repairs)
    return {name: sum(map(repairs[name], operations)) for name, operations in found.items()}


def _narrow(operation: Any) -> bool:
    """Fold an ``arith.truncf`` of a constant."""
    ir = bindings.ir()
    source, type_ = operation.operands[0].owner, operation.results[0].type
    if (
        isinstance(source, ir.Block)
        or source.name != "arith.constant"
        or str(type_) not in ("f16", "f32", "bf16")
    ):
        return False
    with ir.InsertionPoint(operation), operation.location:
        value = ir.FloatAttr.get(type_, ir.FloatAttr(source.attributes["value"]).value)
        constant = ir.Operation.create("arith.constant", results=[type_], attributes={"value": value})
    operation.results[0].replace_all_uses_with(constant.results[0])
    operation.erase()
    return True


def _keep_inside(operation: Any) -> bool:
    """Take the element of a ``tensor.extract`` from inside of its tensor, and zero instead of what is outside."""
    ir = bindings.ir()
    tensor, *indices = operation.operands
    loose = [axis for axis, index in enumerate(indices) if _may_lie_anywhere(index)]
    type_ = operation.results[0].type
    if not loose or not isinstance(type_, (ir.IntegerType, ir.FloatType)):
        return False
    with ir.InsertionPoint(operation), operation.location:
        inside = None
        zero = _constant(ir.IndexType.get(), 0)
        for axis in loose:
            at = indices[axis]
            here = _compare_below(at, _size(tensor, axis))
            operation.operands[1 + axis] = _select(here, at, zero)
            inside = here if inside is None else _create("arith.andi", here.type, here, inside)
    with ir.InsertionPoint.after(operation), operation.location:
        none = _constant(type_, 0)
        chosen = _create("arith.select", type_, inside, operation.results[0], none)
    operation.results[0].replace_all_uses_except(chosen, chosen.owner.operation)
    return True


def _clamp(operation: Any) -> bool:
    """Take the element of a ``tensor.extract`` at the nearest place in its tensor to an index that was read."""
    tensor, *indices = operation.operands
    read = [axis for axis, index in enumerate(indices) if _is_read(index)]
    for axis in read:
        index = indices[axis]
        with bindings.ir().InsertionPoint(operation), operation.location:
            last = _create("arith.subi", index.type, _size(tensor, axis), _constant(index.type, 1))
            low = _create("arith.maxsi", index.type, index, _constant(index.type, 0))
            operation.operands[1 + axis] = _create("arith.minsi", index.type, low, last)
    return bool(read)


def _is_read(index: Any) -> bool:
    """Whether an index is an element of a tensor, as it is."""
    ir = bindings.ir()
    cast = index.owner
    if isinstance(cast, ir.Block) or cast.name not in ("arith.index_cast", "arith.index_castui"):
        return False
    source = cast.operands[0].owner
    return isinstance(source, ir.Block) or source.name == "tensor.extract"


def _may_lie_anywhere(index: Any) -> bool:
    """Whether an index is computed from a float, and not kept between a least and a greatest value on the way."""
    ir = bindings.ir()
    pending, seen, names = [index], set(), set()
    while pending:
        owner = pending.pop().owner
        if isinstance(owner, ir.Block) or owner in seen:
            continue
        seen.add(owner)
        names.add(owner.name)
        if owner.name.startswith(("arith.", "math.")):
            pending += owner.operands
    bounded = not names.isdisjoint(_LOWER) and not names.isdisjoint(_UPPER)
    return not names.isdisjoint({"arith.fptosi", "arith.fptoui"}) and not bounded


def _size(tensor: Any, axis: int) -> Any:
    """The size of a tensor along an axis."""
    ir = bindings.ir()
    type_ = ir.ShapedType(tensor.type)
    if not type_.is_dynamic_dim(axis):
        return _constant(ir.IndexType.get(), type_.get_dim_size(axis))
    return _create("tensor.dim", ir.IndexType.get(), tensor, _constant(ir.IndexType.get(), axis))


def _compare_below(index: Any, size: Any) -> Any:
    """Whether ``0 <= index < size``: a negative one is large as an unsigned number."""
    ir = bindings.ir()
    ult = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 6)  # arith::CmpIPredicate::ult
    return _create("arith.cmpi", ir.IntegerType.get_signless(1), index, size, predicate=ult)


def _select(condition: Any, first: Any, second: Any) -> Any:
    return _create("arith.select", first.type, condition, first, second)


def _constant(type_: Any, value: int) -> Any:
    ir = bindings.ir()
    float_ = isinstance(type_, ir.FloatType)
    attribute = ir.FloatAttr.get(type_, value) if float_ else ir.IntegerAttr.get(type_, value)
    return _create("arith.constant", type_, value=attribute)


def _create(name: str, type_: Any, *operands: Any, **attributes: Any) -> Any:
    """The result of a new operation."""
    created = bindings.ir().Operation.create(name, results=[type_], operands=operands, attributes=attributes)
    return created.results[0]


def _is_host_code(operation: Any) -> bool:
    """Whether an operation lies in a function, and in no kernel or body of a structured operation in it."""
    parent = operation.parent
    while parent is not None and parent.name not in ("func.func", "util.func", "util.initializer"):
        if parent.name.startswith(("linalg.", "iree_linalg_ext.", "flow.", "tensor.")):
            return False
        parent = parent.parent
    return parent is not None


def _insert_slice(operation: Any) -> bool:
    """Make of a ``tensor.insert`` the insertion of a slice."""
    value, tensor, *indices = operation.operands
    element = str(value.type)
    # One bit is none: it would become a tensor of bytes made of bits.
    if len(indices) < 2 or element == "i1" or not _is_host_code(operation):
        return False
    names = [f"%i{axis}" for axis in range(len(indices))]
    ones = ", ".join("1" for _ in indices)
    parameters = ", ".join([f"%v: {element}", f"%t: {tensor.type}", *(f"{name}: index" for name in names)])
    bindings.inline(
        operation,
        f"""func.func @f({parameters}) -> {tensor.type} {{
  %s = tensor.from_elements %v : tensor<1x{element}>
  %r = tensor.insert_slice %s into %t[{", ".join(names)}] [{ones}] [{ones}]
    : tensor<1x{element}> into {tensor.type}
  func.return %r : {tensor.type}
}}""",
    )
    return True


def _from_elements(operation: Any) -> bool:
    """Make a tensor of elements in one dimension first."""
    type_ = operation.results[0].type
    element = str(type_.element_type)
    if type_.rank < 2 or element == "i1" or not _is_host_code(operation):
        return False
    names = [f"%v{number}" for number in range(len(operation.operands))]
    flat = f"tensor<{len(names)}x{element}>"
    bindings.inline(
        operation,
        f"""func.func @f({", ".join(f"{name}: {element}" for name in names)}) -> {type_} {{
  %s = tensor.from_elements {", ".join(names)} : {flat}
  %r = flow.tensor.reshape %s : {flat} -> {type_}
  func.return %r : {type_}
}}""",
    )
    return True


_INDEX = {
    "add": "addi", "sub": "subi", "mul": "muli", "divs": "divsi", "divu": "divui", "rems": "remsi", "remu": "remui",
    "maxs": "maxsi", "maxu": "maxui", "mins": "minsi", "minu": "minui", "and": "andi", "or": "ori", "xor": "xori",
    "shl": "shli", "shrs": "shrsi", "shru": "shrui",
}  # fmt: skip


def _to_arith(operation: Any) -> bool:
    """Make of an operation on two indices that of arith."""
    name = f"arith.{_INDEX[operation.name.removeprefix('index.')]}"
    with bindings.ir().InsertionPoint(operation), operation.location:
        made = _create(name, operation.results[0].type, *operation.operands)
    operation.results[0].replace_all_uses_with(made)
    operation.erase()
    return True


_REPAIRS = {
    "arith.truncf": _narrow,
    "tensor.extract": _keep_inside,
    "tensor.insert": _insert_slice,
    "tensor.from_elements": _from_elements,
}
_VULKAN_REPAIRS = {
    **dict.fromkeys(wide_math.NAMES, wide_math.expand),
    **dict.fromkeys(narrow_math.NAMES, narrow_math.expand),
    **dict.fromkeys([f"index.{name}" for name in _INDEX], _to_arith),
}
