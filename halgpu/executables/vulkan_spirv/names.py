"""Names for the C source: made of what the module calls things, valid, and each given out once."""

from __future__ import annotations

import re
from typing import Final

_KEYWORDS: Final = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if inline int long
    register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
    bool true false half quad uchar ushort uint ulong size_t ptrdiff_t intptr_t uintptr_t event_t sampler_t
    global local constant private generic kernel read_only write_only read_write uniform pipe complex imaginary
    image1d_t image2d_t image3d_t main p
    class namespace template typename this operator new delete public protected and or not xor
    NAN INFINITY HUGE_VAL HUGE_VALF MAXFLOAT M_PI M_E NULL""".split()
)  # fmt: skip

_BUILTINS: Final = frozenset(
    """abs abs_diff acos acosh acospi add_sat all any asin asinh asinpi async_work_group_copy atan atan2 atan2pi
    atanh atanpi barrier bitselect cbrt ceil clamp clz copysign cos cosh cospi cross ctz degrees distance dot
    erf erfc exp exp10 exp2 expm1 fabs fast_distance fast_length fast_normalize fdim floor fma fmax fmin fmod fract
    frexp hadd hypot ilogb isequal isfinite isgreater isgreaterequal isinf isless islessequal islessgreater isnan
    isnormal isnotequal isordered isunordered ldexp length lgamma lgamma_r log log10 log1p log2 logb mad mad24
    mad_hi mad_sat max maxmag mem_fence min minmag mix modf mul24 mul_hi nan native_exp nextafter normalize popcount
    pow pown powr prefetch printf radians read_mem_fence remainder remquo rhadd rint rootn rotate round rsqrt select
    shuffle shuffle2 sign signbit sin sincos sinh sinpi smoothstep sqrt step sub_sat tan tanh tanpi tgamma trunc
    upsample vec_step wait_group_events write_mem_fence""".split()
)  # fmt: skip

_TAKEN_FORMS: Final = re.compile(
    r"(get|as|convert|vload|vstore|vloada|vstorea|atomic|atom|atomics|native|half|work|sub|intel|cl|CLK|cles|FLT|DBL)_"
    r"|(u?(char|short|int|long)|float|double|half|bool)(2|3|4|8|16)$|v(load|store)\d|__"
)
MAXIMUM_LENGTH: Final = 96


def sanitize(text: str, fallback: str) -> str:
    """Turn any text into a C identifier that is not one of OpenCL C's own."""
    name = re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9_]", "_", text)).strip("_")[:MAXIMUM_LENGTH]
    if not name:
        name = fallback
    if name[0].isdigit() or name in _KEYWORDS or name in _BUILTINS or _TAKEN_FORMS.match(name):
        name = f"{fallback}_{name}"
    return name


class Names:
    """Gives out identifiers, no one twice; an inner set also avoids the names of the outer one."""

    def __init__(self, outer: Names | None = None) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}
        self._outer = outer

    def __contains__(self, name: str) -> bool:
        return name in self._taken or (self._outer is not None and name in self._outer)

    @property
    def given(self) -> frozenset[str]:
        """The identifiers given out so far, without those of the outer set."""
        return frozenset(self._taken)

    def unique(self, text: str, fallback: str = "name") -> str:
        """A valid identifier like ``text`` that was not given out before."""
        base = sanitize(text, fallback)
        return self.reserve(base)

    def reserve(self, base: str) -> str:
        """Give out ``base``, which is a valid identifier, with a number behind it if it is taken."""
        name = base
        while name in self:
            number = self._next.get(base, 1) + 1
            self._next[base] = number
            name = f"{base}_{number}"
        self._taken.add(name)
        return name
