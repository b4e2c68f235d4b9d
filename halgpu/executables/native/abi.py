"""The executable-library ABI of IREE, version 0.6: its C structures, for 64-bit machines.

Fields are in the order and have the types of runtime/src/iree/hal/local/executable_library.h; ctypes lays them out as
C does. Pointers are addresses (``c_void_p``), so that nothing is followed before it is checked.
"""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    Structure,
    c_int,
    c_int32,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Final

VERSION: Final = 6
"""IREE_HAL_EXECUTABLE_LIBRARY_VERSION_0_6, the only one that iree-compile makes."""
LOCAL_MEMORY_PAGE: Final = 4096
MAXIMUM_CONSTANTS: Final = 64
MAXIMUM_BINDINGS: Final = 64
SEQUENTIAL: Final = 1
"""Dispatch flag: contiguous workgroups process data sequentially."""

QUERY_FUNCTION: Final = CFUNCTYPE(c_void_p, c_uint32, c_void_p)


class Environment(Structure):
    """``iree_hal_executable_environment_v0_t``"""

    _fields_ = (
        ("constants", c_void_p),
        ("import_thunk", c_void_p),
        ("import_funcs", c_void_p),
        ("import_contexts", c_void_p),
        ("processor_data", c_uint64 * 8),
    )


class DispatchState(Structure):
    """``iree_hal_executable_dispatch_state_v0_t``"""

    _fields_ = (
        ("workgroup_size_x", c_uint32),
        ("workgroup_size_y", c_uint32),
        ("workgroup_size_z", c_uint16),
        ("constant_count", c_uint16),
        ("workgroup_count_x", c_uint32),
        ("workgroup_count_y", c_uint32),
        ("workgroup_count_z", c_uint16),
        ("max_concurrency", c_uint8),
        ("binding_count", c_uint8),
        ("constants", c_void_p),
        ("binding_ptrs", c_void_p),
        ("binding_lengths", c_void_p),
    )


class WorkgroupState(Structure):
    """``iree_hal_executable_workgroup_state_v0_t``"""

    _fields_ = (
        ("workgroup_id_x", c_uint32),
        ("workgroup_id_y", c_uint32),
        ("workgroup_id_z", c_uint16),
        ("reserved", c_uint16),
        ("processor_id", c_uint32),
        ("local_memory", c_void_p),
        ("local_memory_size", c_uint32),
    )


class Header(Structure):
    """``iree_hal_executable_library_header_t``"""

    _fields_ = (
        ("version", c_uint32),
        ("name", c_void_p),
        ("features", c_uint32),
        ("sanitizer", c_int),
    )


class DispatchAttributes(Structure):
    """``iree_hal_executable_dispatch_attrs_v0_t``"""

    _fields_ = (
        ("flags", c_uint64),
        ("local_memory_pages", c_uint16),
        ("constant_count", c_uint8),
        ("binding_count", c_uint8),
        ("workgroup_size_x", c_uint32),
        ("workgroup_size_y", c_uint32),
        ("workgroup_size_z", c_uint16),
        ("parameter_count", c_uint16),
        ("reserved_1", c_uint64 * 5),
    )


class ImportTable(Structure):
    """``iree_hal_executable_import_table_v0_t``"""

    _fields_ = (("count", c_uint32), ("symbols", c_void_p))


class ExportTable(Structure):
    """``iree_hal_executable_export_table_v0_t``"""

    _fields_ = (
        ("count", c_uint32),
        ("ptrs", c_void_p),
        ("attrs", c_void_p),
        ("params", c_void_p),
        ("occupancy", c_void_p),
        ("names", c_void_p),
        ("tags", c_void_p),
        ("parameter_names", c_void_p),
        ("source_locations", c_void_p),
        ("stage_locations", c_void_p),
    )


class Library(Structure):
    """``iree_hal_executable_library_v0_t``, without the table of sources at its end."""

    _fields_ = (
        ("header", c_void_p),
        ("imports", ImportTable),
        ("exports", ExportTable),
        ("constant_count", c_uint32),
    )


class Job(Structure):
    """What one thread runs of a dispatch: halgpu's own, of workgroups.py."""

    _fields_ = (
        ("function", c_void_p),
        ("environment", c_void_p),
        ("dispatch_state", c_void_p),
        ("workgroup_state", c_void_p),
        ("next", c_void_p),
        ("end", c_uint64),
        ("count_x", c_uint64),
        ("count_y", c_uint64),
        ("failed", c_uint64),
    )


RUN_FUNCTION: Final = CFUNCTYPE(c_int32, c_void_p)
