"""What moves elements: transpose, pad, concat, slices, gather, scatter; and what orders them: sort and scan."""

from __future__ import annotations

from .program import ANY, ANY_INTEGER, ELEMENTS, FLOATS, INTEGERS, Domain, Program, on_unsigned, zero_of


def _moving(source: str, kind: str, sizes: tuple[int, ...] = (), *more: Domain) -> Program:
    """A program that copies elements and so returns exactly what it was given."""
    domain = ANY if kind in FLOATS else ANY_INTEGER
    return Program(
        source, sizes, (domain, *more) if more else (domain,), ulps=0, floor=0.0, relative_to_largest=False
    )


def transpose(shape: str, permutation: tuple[int, ...], kind: str) -> Program:
    sizes = shape.split("x")
    result = "x".join(sizes[i] for i in permutation)
    return _moving(
        f"""
func.func @main(%a: tensor<{shape}x{kind}>) -> tensor<{result}x{kind}> {{
  %e = tensor.empty() : tensor<{result}x{kind}>
  %r = linalg.transpose ins(%a : tensor<{shape}x{kind}>) outs(%e : tensor<{result}x{kind}>)
    permutation = [{", ".join(map(str, permutation))}]
  return %r : tensor<{result}x{kind}>
}}
""",
        kind,
    )


def concat(axis: int, a: str, b: str, c: str, kind: str) -> Program:
    return _moving(
        f"""
func.func @main(%a: tensor<{a}x{kind}>, %b: tensor<{b}x{kind}>) -> tensor<{c}x{kind}> {{
  %r = tensor.concat dim({axis}) %a, %b : (tensor<{a}x{kind}>, tensor<{b}x{kind}>) -> tensor<{c}x{kind}>
  return %r : tensor<{c}x{kind}>
}}
""",
        kind,
    )


def pad(kind: str) -> Program:
    value = "1.5" if kind in FLOATS else "true" if kind == "i1" else "3"
    return _moving(
        f"""
func.func @main(%a: tensor<3x7x{kind}>) -> tensor<6x12x{kind}> {{
  %z = arith.constant {value} : {kind}
  %r = tensor.pad %a low[1, 2] high[2, 3] {{
  ^bb0(%i: index, %j: index):
    tensor.yield %z : {kind}
  }} : tensor<3x7x{kind}> to tensor<6x12x{kind}>
  return %r : tensor<6x12x{kind}>
}}
""",
        kind,
    )


def pad_dynamic(kind: str) -> Program:
    return _moving(
        f"""
func.func @main(%a: tensor<?x7x{kind}>) -> tensor<?x9x{kind}> {{
  %z = arith.constant {zero_of(kind)} : {kind}
  %r = tensor.pad %a low[1, 1] high[2, 1] {{
  ^bb0(%i: index, %j: index):
    tensor.yield %z : {kind}
  }} : tensor<?x7x{kind}> to tensor<?x9x{kind}>
  return %r : tensor<?x9x{kind}>
}}
""",
        kind,
        (5,),
    )


def slices(kind: str) -> Program:
    """A strided slice, and the same put into another tensor."""
    return _moving(
        f"""
func.func @main(%a: tensor<16x20x{kind}>, %b: tensor<9x8x{kind}>) -> (tensor<5x6x{kind}>, tensor<9x8x{kind}>) {{
  %r = tensor.extract_slice %a[2, 3] [5, 6] [2, 3] : tensor<16x20x{kind}> to tensor<5x6x{kind}>
  %s = tensor.insert_slice %r into %b[3, 1] [5, 6] [1, 1] : tensor<5x6x{kind}> into tensor<9x8x{kind}>
  return %r, %s : tensor<5x6x{kind}>, tensor<9x8x{kind}>
}}
""",
        kind,
    )


def broadcast(kind: str) -> Program:
    return _moving(
        f"""
func.func @main(%a: tensor<12x{kind}>) -> tensor<5x12x{kind}> {{
  %e = tensor.empty() : tensor<5x12x{kind}>
  %r = linalg.broadcast ins(%a : tensor<12x{kind}>) outs(%e : tensor<5x12x{kind}>) dimensions = [0]
  return %r : tensor<5x12x{kind}>
}}
""",
        kind,
    )


def gather(kind: str, index: str) -> Program:
    return _moving(
        f"""
func.func @main(%a: tensor<17x8x{kind}>, %i: tensor<5x{index}>) -> tensor<5x8x{kind}> {{
  %e = tensor.empty() : tensor<5x8x{kind}>
  %r = linalg.generic {{indexing_maps = [affine_map<(i,j) -> (i)>, affine_map<(i,j) -> (i,j)>],
      iterator_types = ["parallel", "parallel"]}} ins(%i : tensor<5x{index}>) outs(%e : tensor<5x8x{kind}>) {{
    ^bb0(%k: {index}, %o: {kind}):
      %k1 = arith.index_cast %k : {index} to index
      %j = linalg.index 1 : index
      %x = tensor.extract %a[%k1, %j] : tensor<17x8x{kind}>
      linalg.yield %x : {kind}
  }} -> tensor<5x8x{kind}>
  return %r : tensor<5x8x{kind}>
}}
""",
        kind,
        (),
        Domain(0, 16),
    )


def scatter(kind: str) -> Program:
    """Rows of one tensor put at given places of another; the places differ."""
    return _moving(
        f"""
func.func @main(%o: tensor<10x3x{kind}>, %u: tensor<4x3x{kind}>) -> tensor<10x3x{kind}> {{
  %i = arith.constant dense<[[7], [0], [3], [9]]> : tensor<4x1xi32>
  %r = iree_linalg_ext.scatter dimension_map = [0] unique_indices(true)
    ins(%u, %i : tensor<4x3x{kind}>, tensor<4x1xi32>) outs(%o : tensor<10x3x{kind}>) {{
    ^bb0(%x: {kind}, %y: {kind}):
      iree_linalg_ext.yield %x : {kind}
  }} -> tensor<10x3x{kind}>
  return %r : tensor<10x3x{kind}>
}}
""",
        kind,
    )


def scatter_indices(kind: str, unique: bool) -> Program:
    """The same with places as an argument; all are one place, so that only a sum is defined where not unique."""
    add = "arith.addf" if kind in FLOATS else "arith.addi"
    value = "%x" if unique else "%s"
    rows = 1 if unique else 4
    return Program(
        f"""
func.func @main(%o: tensor<10x3x{kind}>, %u: tensor<{rows}x3x{kind}>, %i: tensor<{rows}x1xi32>)
    -> tensor<10x3x{kind}> {{
  %r = iree_linalg_ext.scatter dimension_map = [0] unique_indices({str(unique).lower()})
    ins(%u, %i : tensor<{rows}x3x{kind}>, tensor<{rows}x1xi32>) outs(%o : tensor<10x3x{kind}>) {{
    ^bb0(%x: {kind}, %y: {kind}):
      %s = {add} %x, %y : {kind}
      iree_linalg_ext.yield {value} : {kind}
  }} -> tensor<10x3x{kind}>
  return %r : tensor<10x3x{kind}>
}}
""",
        domains=(Domain(), Domain(), Domain(0, 9)),
    )


def sort(kind: str, predicate: str = "gt") -> Program:
    """Rows sorted. Random values only: where values compare equal or unordered the order is not defined."""
    compare = f"cmpf o{predicate}" if kind in FLOATS else f"cmpi s{predicate}"
    return Program(
        f"""
func.func @main(%a: tensor<4x21x{kind}>) -> tensor<4x21x{kind}> {{
  %r = iree_linalg_ext.sort dimension(1) outs(%a : tensor<4x21x{kind}>) {{
    ^bb0(%x: {kind}, %y: {kind}):
      %c = arith.{compare}, %x, %y : {kind}
      iree_linalg_ext.yield %c : i1
  }} -> tensor<4x21x{kind}>
  return %r : tensor<4x21x{kind}>
}}
""",
        domains=(Domain(-1000, 1000),),
        ulps=0,
    )


def sort_pairs(kind: str) -> Program:
    compare = "cmpf olt" if kind in FLOATS else "cmpi slt"
    return Program(
        f"""
func.func @main(%a: tensor<64x{kind}>) -> (tensor<64x{kind}>, tensor<64xi32>) {{
  %e = tensor.empty() : tensor<64xi32>
  %k = linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>], iterator_types = ["parallel"]}}
    outs(%e : tensor<64xi32>) {{
    ^bb0(%o: i32):
      %j = linalg.index 0 : index
      %ji = arith.index_cast %j : index to i32
      linalg.yield %ji : i32
  }} -> tensor<64xi32>
  %r:2 = iree_linalg_ext.sort dimension(0) outs(%a, %k : tensor<64x{kind}>, tensor<64xi32>) {{
    ^bb0(%x: {kind}, %y: {kind}, %p: i32, %q: i32):
      %c = arith.{compare}, %x, %y : {kind}
      iree_linalg_ext.yield %c : i1
  }} -> tensor<64x{kind}>, tensor<64xi32>
  return %r#0, %r#1 : tensor<64x{kind}>, tensor<64xi32>
}}
""",
        domains=(Domain(-(2.0**30), 2.0**30),),
        ulps=0,
    )


def scan(kind: str, axis: int, operation: str, start: str, inclusive: bool = True) -> Program:
    carried = "12" if axis == 1 else "9"
    return Program(f"""
func.func @main(%a: tensor<12x9x{kind}>) -> tensor<12x9x{kind}> {{
  %e = tensor.empty() : tensor<12x9x{kind}>
  %z = arith.constant {start} : {kind}
  %acc0 = tensor.empty() : tensor<{carried}x{kind}>
  %acc = linalg.fill ins(%z : {kind}) outs(%acc0 : tensor<{carried}x{kind}>) -> tensor<{carried}x{kind}>
  %r:2 = iree_linalg_ext.scan dimension({axis}) inclusive({str(inclusive).lower()})
    ins(%a : tensor<12x9x{kind}>) outs(%e, %acc : tensor<12x9x{kind}>, tensor<{carried}x{kind}>) {{
    ^bb0(%x: {kind}, %y: {kind}):
      %s = {operation} %x, %y : {kind}
      iree_linalg_ext.yield %s : {kind}
  }} -> tensor<12x9x{kind}>, tensor<{carried}x{kind}>
  return %r#0 : tensor<12x9x{kind}>
}}
""")


LARGE_CONSTANT = """
func.func @main(%i: tensor<9xi32>) -> tensor<9xf32> {
  %t = arith.constant dense<[1.0, 2.5, -3.0, 0x7F800000, 0.1, 1.0e-40, 5.0, 6.0, 7.0, 8.0]> : tensor<10xf32>
  %e = tensor.empty() : tensor<9xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
    ins(%i : tensor<9xi32>) outs(%e : tensor<9xf32>) {
    ^bb0(%k: i32, %o: f32):
      %k1 = arith.index_cast %k : i32 to index
      %x = tensor.extract %t[%k1] : tensor<10xf32>
      linalg.yield %x : f32
  } -> tensor<9xf32>
  return %r : tensor<9xf32>
}
"""
BROADCAST_ADD = """
func.func @main(%a: tensor<?x12xf32>, %b: tensor<12xf32>) -> tensor<?x12xf32> {
  %i = arith.constant 0 : index
  %d = tensor.dim %a, %i : tensor<?x12xf32>
  %e = tensor.empty(%d) : tensor<?x12xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i,j) -> (i,j)>, affine_map<(i,j) -> (j)>,
      affine_map<(i,j) -> (i,j)>], iterator_types = ["parallel", "parallel"]}
    ins(%a, %b : tensor<?x12xf32>, tensor<12xf32>) outs(%e : tensor<?x12xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %s = arith.addf %x, %y : f32
      linalg.yield %s : f32
  } -> tensor<?x12xf32>
  return %r : tensor<?x12xf32>
}
"""


def _moves(kind: str) -> dict[str, Program]:
    return {
        f"transpose_{kind}": transpose("33x70", (1, 0), kind),
        f"transpose_{kind}_64": transpose("64x128", (1, 0), kind),
        f"concat_{kind}": concat(1, "3x7", "3x5", "3x12", kind),
        f"pad_{kind}": pad(kind),
        f"slices_{kind}": slices(kind),
        f"broadcast_{kind}": broadcast(kind),
        f"gather_{kind}": gather(kind, "i32"),
        f"scatter_{kind}": scatter(kind),
    }


def programs() -> dict[str, Program]:
    found: dict[str, Program] = {}
    for kind in ELEMENTS:
        if kind == "ui8":
            moves = _moves("i8")
            found |= {name.replace("i8", "ui8"): on_unsigned(program) for name, program in moves.items()}
        else:
            found |= _moves(kind)
    for kind in ("i8", "i64", "f16", "f32"):
        found[f"transpose_{kind}_3d"] = transpose("4x6x16", (2, 0, 1), kind)
        found[f"concat_{kind}_axis0"] = concat(0, "3x8", "5x8", "8x8", kind)
        found[f"pad_{kind}_dynamic"] = pad_dynamic(kind)
        found[f"gather_{kind}_by_i64"] = gather(kind, "i64")
    for kind in (*INTEGERS, *FLOATS):
        add, zero = ("arith.addf", "0.0") if kind in FLOATS else ("arith.addi", "0")
        largest = "arith.maximumf" if kind in FLOATS else "arith.maxsi"
        found[f"sort_{kind}"] = sort(kind)
        found[f"scan_{kind}"] = scan(kind, 1, add, zero)
        found[f"scan_{kind}_exclusive"] = scan(kind, 0, add, zero, inclusive=False)
        found[f"scan_{kind}_largest"] = scan(kind, 0, largest, zero)
        found[f"scatter_{kind}_to"] = scatter_indices(kind, unique=True)
    for kind in ("i32", "f32"):
        found[f"scatter_{kind}_add"] = scatter_indices(kind, unique=False)
        found[f"sort_{kind}_descending"] = sort(kind, "lt")
        found[f"sort_{kind}_pairs"] = sort_pairs(kind)
    found["large_constant"] = Program(LARGE_CONSTANT, domains=(Domain(0, 9),))
    found["broadcast_add"] = Program(BROADCAST_ADD, (19,))
    return found
