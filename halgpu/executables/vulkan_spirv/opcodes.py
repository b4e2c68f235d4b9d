"""The SPIR-V instructions that halgpu knows.

Numbers are those of the SPIR-V specification (unified1, section "Binary Form"). An instruction that is not in the
table is refused by name or number when a module is parsed; one that is in the table but has no emitter is refused
when its kernel is translated.

Operands of an instruction are spelled with one letter a word:

    t  id of the result's type          n  literal number            s  string, to its zero byte
    r  id of the result                 e  number of an enumerant    *  any number of the letter before
    i  id                               w  words that depend on context, up to the end
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


class Op(enum.IntEnum):
    """The opcodes, named as in the specification without their ``Op``, and how their operands are read."""

    operands: str

    def __new__(cls, opcode: int, operands: str = "") -> Op:
        """An opcode, and its operands spelled as the module says."""
        member = int.__new__(cls, opcode)
        member._value_ = opcode
        member.operands = operands
        return member

    # Debug information, extensions, modes and decorations.
    Nop = 0
    Undef = 1, "tr"
    SourceContinued = 2, "s"
    Source = 3, "enw"
    SourceExtension = 4, "s"
    Name = 5, "is"
    MemberName = 6, "ins"
    String = 7, "rs"
    Line = 8, "inn"
    NoLine = 317
    ModuleProcessed = 330, "s"
    Extension = 10, "s"
    ExtInstImport = 11, "rs"
    ExtInst = 12, "trini*"
    MemoryModel = 14, "ee"
    EntryPoint = 15, "eis"
    ExecutionMode = 16, "iew"
    ExecutionModeId = 331, "iew"
    Capability = 17, "e"
    Decorate = 71, "iew"
    MemberDecorate = 72, "inew"
    DecorateId = 332, "iew"
    DecorateString = 5632, "iew"
    MemberDecorateString = 5633, "inew"

    # Types and constants.
    TypeVoid = 19, "r"
    TypeBool = 20, "r"
    TypeInt = 21, "rnn"
    TypeFloat = 22, "rnw"
    TypeVector = 23, "rin"
    TypeArray = 28, "rii"
    TypeRuntimeArray = 29, "ri"
    TypeStruct = 30, "ri*"
    TypePointer = 32, "rei"
    TypeFunction = 33, "rii*"
    TypeCooperativeMatrixKHR = 4456, "riiiii"
    ConstantTrue = 41, "tr"
    ConstantFalse = 42, "tr"
    Constant = 43, "trnw"
    ConstantComposite = 44, "tri*"
    ConstantNull = 46, "tr"
    SpecConstantTrue = 48, "tr"
    SpecConstantFalse = 49, "tr"
    SpecConstant = 50, "trnw"
    SpecConstantComposite = 51, "tri*"
    SpecConstantOp = 52, "trnw"

    # Functions and memory.
    Function = 54, "trei"
    FunctionParameter = 55, "tr"
    FunctionEnd = 56
    FunctionCall = 57, "trii*"
    Variable = 59, "trei*"
    Load = 61, "triw"
    Store = 62, "iiw"
    CopyMemory = 63, "iiw"
    AccessChain = 65, "trii*"
    InBoundsAccessChain = 66, "trii*"
    PtrAccessChain = 67, "triii*"
    ArrayLength = 68, "trin"

    # Composites.
    VectorExtractDynamic = 77, "trii"
    VectorInsertDynamic = 78, "triii"
    VectorShuffle = 79, "triin*"
    CompositeConstruct = 80, "tri*"
    CompositeExtract = 81, "trin*"
    CompositeInsert = 82, "triin*"
    CopyObject = 83, "tri"
    CopyLogical = 400, "tri"

    # Conversions.
    ConvertFToU = 109, "tri"
    ConvertFToS = 110, "tri"
    ConvertSToF = 111, "tri"
    ConvertUToF = 112, "tri"
    UConvert = 113, "tri"
    SConvert = 114, "tri"
    FConvert = 115, "tri"
    QuantizeToF16 = 116, "tri"
    Bitcast = 124, "tri"

    # Arithmetic.
    SNegate = 126, "tri"
    FNegate = 127, "tri"
    IAdd = 128, "trii"
    FAdd = 129, "trii"
    ISub = 130, "trii"
    FSub = 131, "trii"
    IMul = 132, "trii"
    FMul = 133, "trii"
    UDiv = 134, "trii"
    SDiv = 135, "trii"
    FDiv = 136, "trii"
    UMod = 137, "trii"
    SRem = 138, "trii"
    SMod = 139, "trii"
    FRem = 140, "trii"
    FMod = 141, "trii"
    VectorTimesScalar = 142, "trii"
    MatrixTimesScalar = 143, "trii"
    Dot = 148, "trii"
    IAddCarry = 149, "trii"
    ISubBorrow = 150, "trii"
    UMulExtended = 151, "trii"
    SMulExtended = 152, "trii"
    SDot = 4450, "triiw"
    UDot = 4451, "triiw"
    SUDot = 4452, "triiw"
    SDotAccSat = 4453, "triiiw"
    UDotAccSat = 4454, "triiiw"
    SUDotAccSat = 4455, "triiiw"

    # Logic and comparisons.
    Any = 154, "tri"
    All = 155, "tri"
    IsNan = 156, "tri"
    IsInf = 157, "tri"
    IsFinite = 158, "tri"
    IsNormal = 159, "tri"
    SignBitSet = 160, "tri"
    Ordered = 162, "trii"
    Unordered = 163, "trii"
    LogicalEqual = 164, "trii"
    LogicalNotEqual = 165, "trii"
    LogicalOr = 166, "trii"
    LogicalAnd = 167, "trii"
    LogicalNot = 168, "tri"
    Select = 169, "triii"
    IEqual = 170, "trii"
    INotEqual = 171, "trii"
    UGreaterThan = 172, "trii"
    SGreaterThan = 173, "trii"
    UGreaterThanEqual = 174, "trii"
    SGreaterThanEqual = 175, "trii"
    ULessThan = 176, "trii"
    SLessThan = 177, "trii"
    ULessThanEqual = 178, "trii"
    SLessThanEqual = 179, "trii"
    FOrdEqual = 180, "trii"
    FUnordEqual = 181, "trii"
    FOrdNotEqual = 182, "trii"
    FUnordNotEqual = 183, "trii"
    FOrdLessThan = 184, "trii"
    FUnordLessThan = 185, "trii"
    FOrdGreaterThan = 186, "trii"
    FUnordGreaterThan = 187, "trii"
    FOrdLessThanEqual = 188, "trii"
    FUnordLessThanEqual = 189, "trii"
    FOrdGreaterThanEqual = 190, "trii"
    FUnordGreaterThanEqual = 191, "trii"

    # Bits.
    ShiftRightLogical = 194, "trii"
    ShiftRightArithmetic = 195, "trii"
    ShiftLeftLogical = 196, "trii"
    BitwiseOr = 197, "trii"
    BitwiseXor = 198, "trii"
    BitwiseAnd = 199, "trii"
    Not = 200, "tri"
    BitFieldInsert = 201, "triiii"
    BitFieldSExtract = 202, "triii"
    BitFieldUExtract = 203, "triii"
    BitReverse = 204, "tri"
    BitCount = 205, "tri"

    # Barriers and atomics.
    ControlBarrier = 224, "iii"
    MemoryBarrier = 225, "ii"
    AtomicLoad = 227, "triii"
    AtomicStore = 228, "iiii"
    AtomicExchange = 229, "triiii"
    AtomicCompareExchange = 230, "triiiiii"
    AtomicIIncrement = 232, "triii"
    AtomicIDecrement = 233, "triii"
    AtomicIAdd = 234, "triiii"
    AtomicISub = 235, "triiii"
    AtomicSMin = 236, "triiii"
    AtomicUMin = 237, "triiii"
    AtomicSMax = 238, "triiii"
    AtomicUMax = 239, "triiii"
    AtomicAnd = 240, "triiii"
    AtomicOr = 241, "triiii"
    AtomicXor = 242, "triiii"
    AtomicFAddEXT = 6035, "triiii"
    AtomicFMinEXT = 5614, "triiii"
    AtomicFMaxEXT = 5615, "triiii"

    # Control flow.
    Phi = 245, "tri*"
    LoopMerge = 246, "iiew"
    SelectionMerge = 247, "ie"
    Label = 248, "r"
    Branch = 249, "i"
    BranchConditional = 250, "iiin*"
    Switch = 251, "iiw"
    Kill = 252
    Return = 253
    ReturnValue = 254, "i"
    Unreachable = 255

    # Subgroups.
    GroupNonUniformElect = 333, "tri"
    GroupNonUniformAll = 334, "trii"
    GroupNonUniformAny = 335, "trii"
    GroupNonUniformAllEqual = 336, "trii"
    GroupNonUniformBroadcast = 337, "triii"
    GroupNonUniformBroadcastFirst = 338, "trii"
    GroupNonUniformBallot = 339, "trii"
    GroupNonUniformShuffle = 345, "triii"
    GroupNonUniformShuffleXor = 346, "triii"
    GroupNonUniformShuffleUp = 347, "triii"
    GroupNonUniformShuffleDown = 348, "triii"
    GroupNonUniformIAdd = 349, "trieii*"
    GroupNonUniformFAdd = 350, "trieii*"
    GroupNonUniformIMul = 351, "trieii*"
    GroupNonUniformFMul = 352, "trieii*"
    GroupNonUniformSMin = 353, "trieii*"
    GroupNonUniformUMin = 354, "trieii*"
    GroupNonUniformFMin = 355, "trieii*"
    GroupNonUniformSMax = 356, "trieii*"
    GroupNonUniformUMax = 357, "trieii*"
    GroupNonUniformFMax = 358, "trieii*"
    GroupNonUniformBitwiseAnd = 359, "trieii*"
    GroupNonUniformBitwiseOr = 360, "trieii*"
    GroupNonUniformBitwiseXor = 361, "trieii*"
    GroupNonUniformLogicalAnd = 362, "trieii*"
    GroupNonUniformLogicalOr = 363, "trieii*"
    GroupNonUniformLogicalXor = 364, "trieii*"

    # Cooperative matrices (SPV_KHR_cooperative_matrix).
    CooperativeMatrixLoadKHR = 4457, "triiw"
    CooperativeMatrixStoreKHR = 4458, "iiiw"
    CooperativeMatrixMulAddKHR = 4459, "triiiw"
    CooperativeMatrixLengthKHR = 4460, "tri"


@dataclass(frozen=True, slots=True)
class OpInfo:
    """How the words of one instruction are read."""

    name: str
    opcode: int
    has_type: bool
    has_result: bool
    minimum: int
    """Operand words that must be there, type and result not counted."""
    fixed: bool
    """Whether there may be no more than ``minimum`` operand words."""
    ids: tuple[int, ...]
    """Positions among the first ``minimum`` operands that are ids."""
    more_ids: bool
    """Whether all operands beyond ``minimum`` are ids."""

    def ids_of(self, operands: tuple[int, ...]) -> Iterator[int]:
        """The operands that are ids wherever the instruction stands."""
        yield from (operands[position] for position in self.ids)
        if self.more_ids:
            yield from operands[self.minimum :]


def _info(op: Op) -> OpInfo:
    letters = op.operands
    has_type = letters.startswith("t")
    letters = letters.removeprefix("t")
    has_result = letters.startswith("r")
    letters = letters.removeprefix("r")
    open_end = letters.endswith(("*", "w", "s"))
    head = letters[:-2] if letters.endswith("*") else letters.rstrip("w")
    return OpInfo(
        name=op.name,
        opcode=int(op),
        has_type=has_type,
        has_result=has_result,
        minimum=len(head),
        fixed=not open_end,
        ids=tuple(i for i, letter in enumerate(head) if letter == "i"),
        more_ids=letters.endswith("i*"),
    )


INSTRUCTIONS: Final[dict[int, OpInfo]] = {int(op): _info(op) for op in Op}

UNSUPPORTED: Final[dict[int, str]] = {
    24: "TypeMatrix", 25: "TypeImage", 26: "TypeSampler", 27: "TypeSampledImage", 39: "TypeForwardPointer",
    60: "ImageTexelPointer", 64: "CopyMemorySized", 95: "ImageFetch", 98: "ImageRead", 99: "ImageWrite",
    144: "VectorTimesMatrix", 145: "MatrixTimesVector", 146: "MatrixTimesMatrix",
    340: "GroupNonUniformInverseBallot", 341: "GroupNonUniformBallotBitExtract",
    342: "GroupNonUniformBallotBitCount", 343: "GroupNonUniformBallotFindLSB",
    344: "GroupNonUniformBallotFindMSB", 365: "GroupNonUniformQuadBroadcast", 366: "GroupNonUniformQuadSwap",
    401: "PtrEqual", 402: "PtrNotEqual", 403: "PtrDiff", 4431: "GroupNonUniformRotateKHR",
    5068: "ReadClockKHR",
}  # fmt: skip
"""Names of instructions that halgpu does not translate, for messages."""


def op_name(opcode: int) -> str:
    """Name an instruction for a message, such as ``OpIAdd`` or ``opcode 7000``."""
    info = INSTRUCTIONS.get(opcode)
    name = info.name if info else UNSUPPORTED.get(opcode)
    return f"Op{name}" if name else f"opcode {opcode}"
