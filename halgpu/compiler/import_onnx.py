"""Imports an ONNX model as MLIR of the torch dialect, in the child process of ``worker``.

Follows ``iree-import-onnx`` (iree.compiler.tools.import_onnx), with inputs' shapes pinned first.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any


class Wrong(Exception):
    """Something that is wrong with the model, or with the shapes given."""


def import_model(source: str, shapes: dict[str, list[int]]) -> bytes:
    """MLIR bytecode of the model in the file ``source``. Raises Wrong."""
    try:
        import onnx
    except ModuleNotFoundError:
        raise Wrong(
            "the package onnx is not installed: pip install 'halgpu[onnx]' (in a checkout: pip install onnx)"
        ) from None
    model = modern(_load(onnx, source))
    pin(model, shapes)
    return imported(model)


def imported(model: Any) -> bytes:
    """MLIR bytecode of an ``onnx.ModelProto``, whose nodes get names. Raises Wrong."""
    import onnx
    from iree.compiler import ir
    from iree.compiler.extras import onnx_importer

    model = _inferred(onnx, model)
    name_nodes(model.graph)
    info = onnx_importer.ModelInfo(model)
    module = info.create_module(context=ir.Context()).operation
    try:
        onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
    except (onnx_importer.OnnxImportError, NotImplementedError) as error:
        raise Wrong(f"the importer cannot take this model: {error}") from error
    module.verify()
    written = io.BytesIO()
    module.write_bytecode(written)
    return written.getvalue()


def _load(onnx: Any, source: str) -> Any:
    try:
        return onnx.load(source)
    except Exception as error:  # protobuf's and onnx's own, of no common class
        raise Wrong(f"no ONNX model can be read: {error}") from error


OPSET = 17
"""What the compiler has operators for from on; of older versions it has few."""


def modern(model: Any) -> Any:
    """The model in opset :data:`OPSET` if it is older and can be converted, else as it is."""
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if not versions or versions[0] >= OPSET:
        return model
    from onnx import version_converter

    try:
        return version_converter.convert_version(model, OPSET)
    except (
        Exception
    ):  # the converter's own, or ValueError for more than 2 GiB: the compiler may take it as it is
        return model


def _inferred(onnx: Any, model: Any) -> Any:
    """The model with the shapes of its values inferred; by way of a file if it exceeds protobuf's 2 GiB."""
    try:
        onnx.checker.check_model(model)
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except ValueError:  # too large for protobuf
        pass
    except Exception as error:  # onnx's ValidationError and InferenceError, of no common class
        raise Wrong(f"the ONNX model is not sound: {error}") from error
    with tempfile.TemporaryDirectory(prefix="halgpu-onnx-") as folder:
        whole, inferred = Path(folder, "model.onnx"), Path(folder, "inferred.onnx")
        onnx.save(model, whole, save_as_external_data=True, location="weights.bin")
        onnx.shape_inference.infer_shapes_path(whole, inferred, data_prop=True)
        return onnx.load(inferred)


def name_nodes(graph: Any, prefix: str = "") -> None:
    """Name the nodes that have no name after graph and operator: diagnostics tell places by them only."""
    prefix = prefix or graph.name
    for number, node in enumerate(graph.node):
        node.name = node.name or f"{prefix}/{node.op_type}_{number}"
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ():
                name_nodes(inner, node.name)


def pin(model: Any, shapes: dict[str, list[int]]) -> None:
    """Give inputs of ``model`` fixed shapes, and the dimensions of the same names elsewhere the same sizes."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = {value.name: value for value in model.graph.input if value.name not in weights}
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            raise Wrong(f"the model has no input {name!r}; it has: {', '.join(inputs) or 'none'}")
        _pin_value(inputs[name], shape, sizes)
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param in sizes:
                dimension.dim_value = sizes[dimension.dim_param]


def _pin_value(value: Any, shape: list[int], sizes: dict[str, int]) -> None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        for _ in shape:
            tensor.shape.dim.add()
    if len(tensor.shape.dim) != len(shape):
        raise Wrong(
            f"input {value.name!r} has {len(tensor.shape.dim)} dimensions, the shape given {len(shape)}"
        )
    for number, (dimension, size) in enumerate(zip(tensor.shape.dim, shape, strict=True)):
        known = (
            dimension.dim_value if dimension.HasField("dim_value") else sizes.get(dimension.dim_param, size)
        )
        if known != size:
            raise Wrong(f"input {value.name!r}: dimension {number} is {known}, the shape given says {size}")
        if dimension.dim_param:
            sizes[dimension.dim_param] = size
        dimension.dim_value = size
