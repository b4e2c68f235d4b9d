"""Checks of the refs that a program passes to the native modules, and the errors of wrong ones."""

from __future__ import annotations

from typing import Any

from halgpu import errors
from halgpu.buffer_view import BufferView
from halgpu.devices.buffer import Buffer as HalBuffer
from halgpu.vm.buffer import Buffer as VmBuffer
from halgpu.vm.support import NullReference

Ref = Any
"""What a program passes for a ref: any object, or None. Each function checks for what it takes."""


def hal_buffer(ref: Ref) -> HalBuffer:
    """``ref`` as a HAL buffer."""
    if isinstance(ref, HalBuffer):
        return ref
    raise wrong_ref("!hal.buffer", ref)


def buffer_view(ref: Ref) -> BufferView:
    """``ref`` as a buffer view."""
    if type(ref) is BufferView:
        return ref
    raise wrong_ref("!hal.buffer_view", ref)


def vm_buffer(ref: Ref) -> VmBuffer:
    """``ref`` as a buffer of the VM."""
    if type(ref) is VmBuffer:
        return ref
    raise wrong_ref("!vm.buffer", ref)


def text(ref: Ref) -> str:
    """The text in a buffer of the VM."""
    return bytes(vm_buffer(ref)).decode("utf-8", "replace")


def wrong_ref(expected: str, found: Ref, where: str = "") -> errors.InvalidArgument:
    """The error of a ref that is null (then a NullReference) or of another type; ``where`` goes in front."""
    if found is None:
        return NullReference(f"{where}expected a ref to {expected}, found null")
    return errors.InvalidArgument(f"{where}expected a ref to {expected}, found a {type(found).__name__}")
