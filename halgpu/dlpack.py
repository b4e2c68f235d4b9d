"""Arrays to and from other libraries by DLPack, the protocol of ``__dlpack__`` and ``__dlpack_device__``.

numpy makes and takes the capsules: it owns the managed tensors and their deleters, so nothing here is called
from C when an interpreter ends. But numpy has no code for the ``ml_dtypes``, whose elements travel as
unsigned integers of the same width; the tensor's dtype is corrected while the capsule is in our hands.

Structures and codes are those of dlpack.h 1.1 (github.com/dmlc/dlpack), the arguments of the methods those of
the Python array API standard 2024.12.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from halgpu import errors

if TYPE_CHECKING:
    from halgpu.elements import ElementType

NDArray = np.ndarray[Any, Any]

CPU = (1, 0)
"""``__dlpack_device__`` of host memory: (kDLCPU, 0)."""

CUDA = 2
"""kDLCUDA."""

HOST_KINDS = frozenset({1, 3, 11, 13})
"""kDLCPU, kDLCUDAHost, kDLROCMHost and kDLCUDAManaged: what the host can address."""

VERSION = (1, 0)

# Name of an element type that numpy's DLPack lacks -> DLDataTypeCode.
CODES = {
    "bf16": 4,
    "f8E4M3FN": 10,
    "f8E4M3FNUZ": 11,
    "f8E5M2": 12,
    "f8E5M2FNUZ": 13,
    "f8E8M0FNU": 14,
}
_NAMES = {(code, 16 if name == "bf16" else 8): name for name, code in CODES.items()}
_UNSIGNED = 1  # kDLUInt

_UNVERSIONED_NAME, _VERSIONED_NAME = b"dltensor", b"dltensor_versioned"


class _DType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("dtype", _DType), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager_context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


def _tensor(capsule: Any) -> _Tensor:
    """A capsule's tensor, to be read or changed; InvalidArgument for what is no such capsule."""
    tensor: _Tensor
    if _is_valid(capsule, _VERSIONED_NAME):
        tensor = _Versioned.from_address(_pointer(capsule, _VERSIONED_NAME)).tensor
    elif _is_valid(capsule, _UNVERSIONED_NAME):
        # DLManagedTensor starts with its tensor.
        tensor = _Tensor.from_address(_pointer(capsule, _UNVERSIONED_NAME))
    else:
        raise errors.InvalidArgument("__dlpack__ returned no unused DLPack capsule")
    return tensor


# To others --------------------------------------------------------------------------------------------


def wants_own_copy(max_version: tuple[int, int] | None) -> bool:
    """Whether a consumer cannot be told that an array is read-only: it knows only versions before 1.0."""
    return max_version is None or max_version[0] < 1


def export(
    array: NDArray,
    element: ElementType,
    max_version: tuple[int, int] | None,
    device: tuple[int, int] = CPU,
) -> Any:
    """A capsule over ``array``, which holds elements of ``element``; it keeps the array alive.

    With a ``device``, the array's address is one of that device, where numpy never looks. Raises
    BufferError for element types that DLPack has not.
    """
    code = CODES.get(element.name)
    if code is not None:
        array = array.view(f"u{array.itemsize}")
    elif array.dtype.kind not in "biufc":
        raise BufferError(f"DLPack has no element type for {element.name}")
    # numpy before 2.1 does not know the argument.
    version: dict[str, Any] = {} if wants_own_copy(max_version) else {"max_version": max_version}
    capsule = array.__dlpack__(**version)
    tensor = _tensor(capsule)
    if code is not None:
        tensor.dtype.code = code
    tensor.device_type, tensor.device_id = device
    return capsule


# From others ------------------------------------------------------------------------------------------


class _Capsule:
    """Hands a capsule to ``numpy.from_dlpack``."""

    __slots__ = ("_capsule",)

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU


def import_array(producer: Any) -> NDArray:
    """The elements of an object with ``__dlpack__`` as an array, not copied where they are on the host.

    A producer on another device is asked for a copy on the host. Whatever it raises comes out.
    """
    return _taken(_ask(producer))


def import_cuda(producer: Any, stream: int) -> NDArray:
    """The elements of an object with ``__dlpack__`` on a GPU, ready for work on ``stream``, not copied.

    The array's address is one of the GPU: nothing but its address, shape and dtype may be looked at.
    """
    try:
        capsule = producer.__dlpack__(stream=stream, max_version=VERSION)
    except TypeError:  # from before version 1.0
        capsule = producer.__dlpack__(stream=stream)
    tensor = _tensor(capsule)
    device = tensor.device_type, tensor.device_id
    tensor.device_type, tensor.device_id = CPU  # of a tensor that is ours until numpy ends it
    try:
        return _taken(capsule)
    finally:
        tensor.device_type, tensor.device_id = device


def _taken(capsule: Any) -> NDArray:
    """The elements of a capsule of the host, which is used up."""
    dtype = _tensor(capsule).dtype
    name = _NAMES.get((dtype.code, dtype.bits)) if dtype.lanes == 1 else None
    if name is None:
        return np.from_dlpack(_Capsule(capsule))
    from halgpu.elements import of_name

    dtype.code = _UNSIGNED  # of a tensor that is ours until numpy ends it
    return np.from_dlpack(_Capsule(capsule)).view(of_name(name).dtype)


def _ask(producer: Any) -> Any:
    device = producer.__dlpack_device__()
    if int(device[0]) not in HOST_KINDS:
        return producer.__dlpack__(max_version=VERSION, dl_device=CPU)
    try:
        return producer.__dlpack__(max_version=VERSION)
    except TypeError:  # from before version 1.0
        return producer.__dlpack__()
