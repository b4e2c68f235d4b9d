"""The device that is used where none is named."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from halgpu.devices import registry

if TYPE_CHECKING:
    from halgpu.devices import Device

VARIABLE = "HALGPU_DEVICE"


def open_device(device: Device | str | None = None) -> Device:
    """The device of a URI, or a Device itself; None means $HALGPU_DEVICE, else the first OpenCL device."""
    if device is None:
        device = os.environ.get(VARIABLE) or registry.DEFAULT_SCHEME
    return registry.open_device(device)
