"""What a translation has to know about a device; apart, since kept translations need no more of the translator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """What the translation depends on about a device."""

    half: bool = False
    """It computes with 16-bit floats (cl_khr_fp16); without, they are computed with as 32-bit floats."""
    double: bool = True
    """It computes with 64-bit floats (cl_khr_fp64)."""
    cpu: bool = False
    """It is a CPU: work-items of a group share a core and its vector units."""
    exact_division: bool = False
    """It rounds division and square root of 32-bit floats correctly when asked to (a build option)."""
    checked: bool = False
    """Kernels check their accesses to bindings and report what lies outside (checked.py)."""
    device: str = "the device"
    """Its name, for errors."""
