"""Enumerants, capabilities, extensions and extended instructions of SPIR-V that halgpu knows.

Numbers are those of the SPIR-V specification (unified1) and of "SPIR-V Extended Instructions for GLSL".
"""

from __future__ import annotations

import enum
from typing import Final


class Storage(enum.IntEnum):
    """Storage classes."""

    UNIFORM_CONSTANT = 0
    INPUT = 1
    UNIFORM = 2
    OUTPUT = 3
    WORKGROUP = 4
    CROSS_WORKGROUP = 5
    PRIVATE = 6
    FUNCTION = 7
    GENERIC = 8
    PUSH_CONSTANT = 9
    ATOMIC_COUNTER = 10
    IMAGE = 11
    STORAGE_BUFFER = 12
    PHYSICAL_STORAGE_BUFFER = 5349


class Decoration(enum.IntEnum):
    """Decorations that mean something here; all others are hints or belong to graphics."""

    SPEC_ID = 1
    BLOCK = 2
    BUFFER_BLOCK = 3
    ROW_MAJOR = 4
    COL_MAJOR = 5
    ARRAY_STRIDE = 6
    BUILT_IN = 11
    ALIASED = 20
    VOLATILE = 21
    NON_WRITABLE = 24
    NON_READABLE = 25
    SATURATED_CONVERSION = 28
    BINDING = 33
    DESCRIPTOR_SET = 34
    OFFSET = 35
    ROUNDING_MODE = 39


class BuiltIn(enum.IntEnum):
    """Built-in variables of compute kernels."""

    NUM_WORKGROUPS = 24
    WORKGROUP_SIZE = 25
    WORKGROUP_ID = 26
    LOCAL_INVOCATION_ID = 27
    GLOBAL_INVOCATION_ID = 28
    LOCAL_INVOCATION_INDEX = 29
    SUBGROUP_SIZE = 36
    NUM_SUBGROUPS = 38
    SUBGROUP_ID = 40
    SUBGROUP_LOCAL_INVOCATION_ID = 41


class Mode(enum.IntEnum):
    """Execution modes."""

    LOCAL_SIZE = 17
    LOCAL_SIZE_HINT = 18
    CONTRACTION_OFF = 31
    SUBGROUP_SIZE = 35
    LOCAL_SIZE_ID = 38
    DENORM_PRESERVE = 4459
    DENORM_FLUSH_TO_ZERO = 4460
    SIGNED_ZERO_INF_NAN_PRESERVE = 4461
    ROUNDING_MODE_RTE = 4462


CAPABILITIES: Final[dict[int, str]] = {
    0: "Matrix", 1: "Shader", 9: "Float16", 10: "Float64", 11: "Int64", 12: "Int64Atomics", 22: "Int16",
    39: "Int8", 61: "GroupNonUniform", 62: "GroupNonUniformVote", 63: "GroupNonUniformArithmetic",
    64: "GroupNonUniformBallot", 65: "GroupNonUniformShuffle", 66: "GroupNonUniformShuffleRelative",
    67: "GroupNonUniformClustered",
    4433: "StorageBuffer16BitAccess", 4434: "UniformAndStorageBuffer16BitAccess", 4435: "StoragePushConstant16",
    4448: "StorageBuffer8BitAccess", 4449: "UniformAndStorageBuffer8BitAccess", 4450: "StoragePushConstant8",
    4464: "DenormPreserve", 4466: "SignedZeroInfNanPreserve", 4467: "RoundingModeRTE",
    5345: "VulkanMemoryModel", 5346: "VulkanMemoryModelDeviceScope",
    6022: "CooperativeMatrixKHR",
    6016: "DotProductInputAll", 6017: "DotProductInput4x8Bit", 6018: "DotProductInput4x8BitPacked",
    6019: "DotProduct", 6025: "BitInstructions", 6033: "AtomicFloat32AddEXT", 6034: "AtomicFloat64AddEXT",
    5612: "AtomicFloat32MinMaxEXT", 5613: "AtomicFloat64MinMaxEXT",
}  # fmt: skip
"""Capabilities that a module may declare. `Matrix` is implied by `Shader`; matrix types are refused."""

OTHER_CAPABILITIES: Final[dict[int, str]] = {
    4: "Addresses", 5: "Linkage", 6: "Kernel", 7: "Vector16", 8: "Float16Buffer", 13: "ImageBasic",
    21: "AtomicStorage", 38: "GenericPointer", 46: "SampledBuffer", 49: "StorageImageExtendedFormats",
    68: "GroupNonUniformQuad", 4212: "Float8EXT", 4213: "Float8CooperativeMatrixEXT",
    4428: "WorkgroupMemoryExplicitLayoutKHR", 4429: "WorkgroupMemoryExplicitLayout8BitAccessKHR",
    4430: "WorkgroupMemoryExplicitLayout16BitAccessKHR", 4441: "VariablePointersStorageBuffer",
    4442: "VariablePointers", 4465: "DenormFlushToZero", 4468: "RoundingModeRTZ", 4473: "UntypedPointersKHR",
    5116: "BFloat16TypeKHR", 5117: "BFloat16DotProductKHR", 5118: "BFloat16CooperativeMatrixKHR",
    5347: "PhysicalStorageBufferAddresses", 5357: "CooperativeMatrixNV",
    6026: "GroupNonUniformRotateKHR", 6029: "FloatControls2", 6095: "AtomicFloat16AddEXT",
}  # fmt: skip
"""Names of capabilities that halgpu does not have, for messages."""

EXTENSIONS: Final = frozenset({
    "SPV_KHR_storage_buffer_storage_class", "SPV_KHR_8bit_storage", "SPV_KHR_16bit_storage",
    "SPV_KHR_vulkan_memory_model", "SPV_KHR_float_controls", "SPV_KHR_integer_dot_product",
    "SPV_KHR_bit_instructions", "SPV_KHR_cooperative_matrix", "SPV_KHR_non_semantic_info",
    "SPV_KHR_relaxed_extended_instruction",
    "SPV_EXT_shader_atomic_float_add", "SPV_EXT_shader_atomic_float_min_max", "SPV_KHR_no_integer_wrap_decoration",
    # Declared for capabilities that are refused by their own name when they are used.
    "SPV_KHR_variable_pointers", "SPV_KHR_bfloat16",
    "SPV_KHR_workgroup_memory_explicit_layout", "SPV_EXT_physical_storage_buffer", "SPV_KHR_physical_storage_buffer",
    "SPV_KHR_expect_assume",
})  # fmt: skip
"""Extensions that a module may declare."""

GLSL: Final[dict[int, str]] = {
    number: name for number, name in enumerate(
        """- Round RoundEven Trunc FAbs SAbs FSign SSign Floor Ceil Fract Radians Degrees Sin Cos Tan Asin Acos Atan
        Sinh Cosh Tanh Asinh Acosh Atanh Atan2 Pow Exp Log Exp2 Log2 Sqrt InverseSqrt Determinant MatrixInverse
        Modf ModfStruct FMin UMin SMin FMax UMax SMax FClamp UClamp SClamp FMix IMix Step SmoothStep Fma Frexp
        FrexpStruct Ldexp PackSnorm4x8 PackUnorm4x8 PackSnorm2x16 PackUnorm2x16 PackHalf2x16 PackDouble2x32
        UnpackSnorm2x16 UnpackUnorm2x16 UnpackHalf2x16 UnpackSnorm4x8 UnpackUnorm4x8 UnpackDouble2x32 Length
        Distance Cross Normalize FaceForward Reflect Refract FindILsb FindSMsb FindUMsb InterpolateAtCentroid
        InterpolateAtSample InterpolateAtOffset NMin NMax NClamp""".split()
    ) if number
}  # fmt: skip
"""Names of the extended instructions of ``GLSL.std.450`` by number."""
