"""NVRTC and ptxas, real ones, where PyPI's nvidia-cuda-nvrtc-cu12 and nvidia-cuda-nvcc-cu12 are installed.

Neither needs a GPU. ``Nvrtc`` has the functions of ``cupy.cuda.nvrtc`` that halgpu uses.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest


def _find(pattern: str) -> Path | None:
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations or [] if spec is not None else []
    found = [
        file for folder in folders for file in sorted(Path(folder).rglob(pattern)) if ".alt." not in file.name
    ]
    return found[0] if found else None


@cache
def nvrtc() -> Nvrtc:
    """The library; skips the test where it is not installed."""
    library = _find("libnvrtc.so.*")
    if library is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    return Nvrtc(ctypes.CDLL(str(library)))


def ptxas() -> Path:
    """The assembler; skips the test where it is not installed."""
    found = _find("ptxas")
    if found is None:
        pytest.skip("ptxas is not installed: pip install nvidia-cuda-nvcc-cu12")
    return found


def assemble(ptx: str, target: str, folder: Path) -> str:
    """What ptxas says to PTX for a GPU; empty when all is well."""
    (folder / "kernels.ptx").write_text(ptx)
    done = subprocess.run(
        [ptxas(), f"--gpu-name={target}", str(folder / "kernels.ptx"), "-o", str(folder / "kernels.cubin")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.stderr if done.returncode else ""


class NVRTCError(RuntimeError):
    pass


class Nvrtc:
    NVRTCError = NVRTCError

    def __init__(self, library: Any) -> None:
        self._library = library

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"nvrtc{name}")(*arguments)
        if status:
            raise NVRTCError(f"{name}: status {status}")

    def _get(self, what: str, program: int) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", ctypes.c_void_p(program), ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"Get{what}", ctypes.c_void_p(program), text)
        return text.raw[:-1]

    def getVersion(self) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("Version", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def getSupportedArchs(self) -> tuple[int, ...]:
        count = ctypes.c_int()
        self._call("GetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._call("GetSupportedArchs", found)
        return tuple(found)

    def createProgram(self, source: str, name: str, headers: Any, include_names: Any) -> int:
        program = ctypes.c_void_p()
        self._call("CreateProgram", ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        assert program.value is not None
        return program.value

    def compileProgram(self, program: int, options: tuple[str, ...]) -> None:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        self._call("CompileProgram", ctypes.c_void_p(program), len(options), given)

    def getProgramLog(self, program: int) -> str:
        return self._get("ProgramLog", program).decode()

    def getPTX(self, program: int) -> bytes:
        return self._get("PTX", program)

    def getCUBIN(self, program: int) -> bytes:
        return self._get("CUBIN", program)

    def destroyProgram(self, program: int) -> None:
        self._call("DestroyProgram", ctypes.byref(ctypes.c_void_p(program)))
