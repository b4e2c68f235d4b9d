"""The instruction table of IREE VM bytecode 17.0 as text: one line an opcode.

A line holds the opcode (hexadecimal), IREE's symbol, the mnemonic of the text form (``-`` for none) and the
encoding. Facts come from runtime/src/iree/vm/bytecode/isa/isa.json (``fpowi``, which the compiler of 3.13.0 emits and
its runtime runs, but that file lacks: from modules that it made); :mod:`halgpu.vm.isa` parses this text.

An encoding is a list of fields in the order in which bytecode holds them. A field is ``name:kind``; a kind is

==================  =====================================================================================
``i32 i64 f32 f64`` a register read as that type (u16)
``ref``             a ref register; ``ref~`` may carry the move bit, plain ``ref`` must not
``=i32``, ``=ref~`` a register that is written
``i32*``, ``any*``  a list of registers: aligned to 2, a u16 count, the registers; ``=any*`` are written
``#i32 …``          an immediate of that type; ``#u16`` is an unsigned count
``@bytes``          byte offset of a primitive global (u32)        ``@ref``     ordinal of a ref global (u32)
``@rodata``         ordinal of a rodata segment (u32)
``@function``       ordinal of a function (u32); bit 31 set: of an import
``@type``           ordinal in the module's type table (u32)       ``string``   u16 length and UTF-8 bytes
``counts``          u16 values, held like a register list          ``target``   offset of a block (u32)
``remap``           aligned to 2, a u16 count, pairs of source and target register
``cases``           as many pairs of ``target`` and ``remap`` as the count before says
==================  =====================================================================================

``T`` and ``U`` stand for the types in parentheses behind an encoding's name in the instruction lines.
"""

ENCODINGS = {
    "marker": "",
    "prefix": "",
    "unary": "operand:T result:=T",
    "binary": "left:T right:T result:=T",
    "ternary": "first:T second:T third:T result:=T",
    "shift": "operand:T amount:i32 result:=T",
    "power": "operand:T exponent:i64 result:=T",
    "select": "condition:i32 true_value:T false_value:T result:=T",
    "unary_comparison": "operand:T result:=i32",
    "binary_comparison": "left:T right:T result:=i32",
    "conversion": "operand:T result:=U",
    "global_load": "byte_offset:@bytes result:=T",
    "global_store": "byte_offset:@bytes value:T",
    "global_load_indirect": "byte_offset:i32 result:=T",
    "global_store_indirect": "byte_offset:i32 value:T",
    "global_load_ref": "global:@ref type_def:@type value:=ref~",
    "global_store_ref": "global:@ref type_def:@type value:ref~",
    "global_load_indirect_ref": "global:i32 type_def:@type value:=ref~",
    "global_store_indirect_ref": "global:i32 type_def:@type value:ref~",
    "constant": "value:#T result:=T",
    "zero_constant": "result:=T",
    "const_ref_zero": "result:=ref~",
    "const_ref_rodata": "rodata:@rodata value:=ref~",
    "list_alloc": "element_type:@type initial_capacity:i32 result:=ref~",
    "list_reserve": "list:ref minimum_capacity:i32",
    "list_size": "list:ref result:=i32",
    "list_resize": "list:ref new_size:i32",
    "list_get": "list:ref index:i32 result:=T",
    "list_set": "list:ref index:i32 value:T",
    "list_get_ref": "list:ref index:i32 type_def:@type result:=ref~",
    "list_set_ref": "list:ref index:i32 value:ref~",
    "select_ref": "condition:i32 true_value_type_def:@type true_value:ref~ false_value:ref~ result:=ref~",
    "switch": "index:i32 default_value:T values:T* result:=T",
    "switch_ref": "index:i32 type_def:@type default_value:ref~ values:ref~* result:=ref~",
    "cast_any_ref": "operand:ref~ result_type:@type result:=ref~",
    "discard_refs": "refs:ref~*",
    "assign_ref": "source:ref~ result:=ref~",
    "buffer_alloc": "length:i64 alignment:i32 result:=ref~",
    "buffer_clone": "source:ref offset:i64 length:i64 alignment:i32 result:=ref~",
    "buffer_length": "buffer:ref result:=i64",
    "buffer_copy": "source_buffer:ref source_offset:i64 target_buffer:ref target_offset:i64 length:i64",
    "buffer_compare": "lhs_buffer:ref lhs_offset:i64 rhs_buffer:ref rhs_offset:i64 length:i64 result:=i32",
    "buffer_fill": "target_buffer:ref target_offset:i64 length:i64 value:T",
    "buffer_load": "source_buffer:ref source_offset:i64 result:=T",
    "buffer_store": "target_buffer:ref target_offset:i64 value:T",
    "buffer_hash": "source_buffer:ref source_offset:i64 length:i64 result:=i64",
    "branch": "dest_pc:target operands:remap",
    "conditional_branch": (
        "condition:i32 true_dest_pc:target true_operands:remap false_dest_pc:target false_operands:remap"
    ),
    "conditional_break": "condition:i32 dest_pc:target operands:remap",
    "branch_table": "index:i32 default_dest_pc:target default_operands:remap table_size:#u16 cases:cases",
    "call": "callee_ordinal:@function operands:any* results:=any*",
    "call_variadic": "callee_ordinal:@function segment_sizes:counts operands:any* results:=any*",
    "yieldable_call": "callee_ordinal:@function operands:any* dest_pc:target results:=any*",
    "call_variadic_yieldable": (
        "callee_ordinal:@function segment_sizes:counts operands:any* dest_pc:target results:=any*"
    ),
    "return": "operands:any*",
    "fail": "status:i32 message:string",
    "import_resolved": "import_ordinal:@function result:=i32",
    "trace": "event_name:string operands:any*",
}

TERMINATORS = {
    "Branch", "CondBranch", "BranchTable", "CondBreak", "Break", "Yield", "Return", "Fail",
    "CallYieldable", "CallVariadicYieldable",
}  # fmt: skip
"""Symbols of the instructions that end a block (runtime/src/iree/vm/bytecode/verifier.c)."""

CORE = """
00 GlobalLoadI32          global.load.i32           global_load(i32)
01 GlobalStoreI32         global.store.i32          global_store(i32)
02 GlobalLoadIndirectI32  global.load.indirect.i32  global_load_indirect(i32)
03 GlobalStoreIndirectI32 global.store.indirect.i32 global_store_indirect(i32)
04 GlobalLoadI64          global.load.i64           global_load(i64)
05 GlobalStoreI64         global.store.i64          global_store(i64)
06 GlobalLoadIndirectI64  global.load.indirect.i64  global_load_indirect(i64)
07 GlobalStoreIndirectI64 global.store.indirect.i64 global_store_indirect(i64)
08 GlobalLoadRef          global.load.ref           global_load_ref
09 GlobalStoreRef         global.store.ref          global_store_ref
0A GlobalLoadIndirectRef  global.load.indirect.ref  global_load_indirect_ref
0B GlobalStoreIndirectRef global.store.indirect.ref global_store_indirect_ref
0C ConstI32Zero           const.i32.zero            zero_constant(i32)
0D ConstI32               const.i32                 constant(i32)
0E ConstI64Zero           const.i64.zero            zero_constant(i64)
0F ConstI64               const.i64                 constant(i64)
10 ConstRefZero           const.ref.zero            const_ref_zero
11 ConstRefRodata         const.ref.rodata          const_ref_rodata
12 ListAlloc              list.alloc                list_alloc
13 ListReserve            list.reserve              list_reserve
14 ListSize               list.size                 list_size
15 ListResize             list.resize               list_resize
16 ListGetI32             list.get.i32              list_get(i32)
17 ListSetI32             list.set.i32              list_set(i32)
18 ListGetI64             list.get.i64              list_get(i64)
19 ListSetI64             list.set.i64              list_set(i64)
1A ListGetRef             list.get.ref              list_get_ref
1B ListSetRef             list.set.ref              list_set_ref
1C SelectI32              select.i32                select(i32)
1D SelectI64              select.i64                select(i64)
1E SelectRef              select.ref                select_ref
1F SwitchI32              switch.i32                switch(i32)
20 SwitchI64              switch.i64                switch(i64)
21 SwitchRef              switch.ref                switch_ref
22 AddI32                 add.i32                   binary(i32)
23 SubI32                 sub.i32                   binary(i32)
24 MulI32                 mul.i32                   binary(i32)
25 DivI32S                div.i32.s                 binary(i32)
26 DivI32U                div.i32.u                 binary(i32)
27 RemI32S                rem.i32.s                 binary(i32)
28 RemI32U                rem.i32.u                 binary(i32)
29 FMAI32                 fma.i32                   ternary(i32)
2A AddI64                 add.i64                   binary(i64)
2B SubI64                 sub.i64                   binary(i64)
2C MulI64                 mul.i64                   binary(i64)
2D DivI64S                div.i64.s                 binary(i64)
2E DivI64U                div.i64.u                 binary(i64)
2F RemI64S                rem.i64.s                 binary(i64)
30 RemI64U                rem.i64.u                 binary(i64)
31 FMAI64                 fma.i64                   ternary(i64)
32 NotI32                 not.i32                   unary(i32)
33 AndI32                 and.i32                   binary(i32)
34 OrI32                  or.i32                    binary(i32)
35 XorI32                 xor.i32                   binary(i32)
36 NotI64                 not.i64                   unary(i64)
37 AndI64                 and.i64                   binary(i64)
38 OrI64                  or.i64                    binary(i64)
39 XorI64                 xor.i64                   binary(i64)
3A ShlI32                 shl.i32                   shift(i32)
3B ShrI32S                shr.i32.s                 shift(i32)
3C ShrI32U                shr.i32.u                 shift(i32)
3D ShlI64                 shl.i64                   shift(i64)
3E ShrI64S                shr.i64.s                 shift(i64)
3F ShrI64U                shr.i64.u                 shift(i64)
40 TruncI32I8             trunc.i32.i8              unary(i32)
41 TruncI32I16            trunc.i32.i16             unary(i32)
42 TruncI64I32            trunc.i64.i32             conversion(i64,i32)
43 ExtI8I32S              ext.i8.i32.s              unary(i32)
44 ExtI8I32U              ext.i8.i32.u              unary(i32)
45 ExtI16I32S             ext.i16.i32.s             unary(i32)
46 ExtI16I32U             ext.i16.i32.u             unary(i32)
47 ExtI32I64S             ext.i32.i64.s             conversion(i32,i64)
48 ExtI32I64U             ext.i32.i64.u             conversion(i32,i64)
49 CmpEQI32               cmp.eq.i32                binary_comparison(i32)
4A CmpNEI32               cmp.ne.i32                binary_comparison(i32)
4B CmpLTI32S              cmp.lt.i32.s              binary_comparison(i32)
4C CmpLTI32U              cmp.lt.i32.u              binary_comparison(i32)
4D CmpNZI32               cmp.nz.i32                unary_comparison(i32)
4E CmpEQI64               cmp.eq.i64                binary_comparison(i64)
4F CmpNEI64               cmp.ne.i64                binary_comparison(i64)
50 CmpLTI64S              cmp.lt.i64.s              binary_comparison(i64)
51 CmpLTI64U              cmp.lt.i64.u              binary_comparison(i64)
52 CmpNZI64               cmp.nz.i64                unary_comparison(i64)
53 CmpEQRef               cmp.eq.ref                binary_comparison(ref)
54 CmpNERef               cmp.ne.ref                binary_comparison(ref)
55 CmpNZRef               cmp.nz.ref                unary_comparison(ref)
56 Branch                 br                        branch
57 CondBranch             cond_br                   conditional_branch
58 Call                   call                      call
59 CallVariadic           call.variadic             call_variadic
5A Return                 return                    return
5B Fail                   fail                      fail
5C ImportResolved         import.resolved           import_resolved
5D Yield                  yield                     branch
5E Trace                  trace                     trace
5F Print                  print                     trace
60 CondBreak              cond_break                conditional_break
61 Break                  break                     branch
62 BufferLoadI8U          buffer.load.i8.u          buffer_load(i32)
63 BufferLoadI8S          buffer.load.i8.s          buffer_load(i32)
64 BufferLoadI16U         buffer.load.i16.u         buffer_load(i32)
65 BufferLoadI16S         buffer.load.i16.s         buffer_load(i32)
66 BufferLoadI32          buffer.load.i32           buffer_load(i32)
67 BufferLoadI64          buffer.load.i64           buffer_load(i64)
68 BufferStoreI8          buffer.store.i8           buffer_store(i32)
69 BufferStoreI16         buffer.store.i16          buffer_store(i32)
6A BufferStoreI32         buffer.store.i32          buffer_store(i32)
6B BufferStoreI64         buffer.store.i64          buffer_store(i64)
6C BufferAlloc            buffer.alloc              buffer_alloc
6D BufferClone            buffer.clone              buffer_clone
6E BufferLength           buffer.length             buffer_length
6F BufferCopy             buffer.copy               buffer_copy
70 BufferCompare          buffer.compare            buffer_compare
71 BufferFillI8           buffer.fill.i8            buffer_fill(i32)
72 BufferFillI16          buffer.fill.i16           buffer_fill(i32)
73 BufferFillI32          buffer.fill.i32           buffer_fill(i32)
74 BufferFillI64          buffer.fill.i64           buffer_fill(i64)
75 CtlzI32                ctlz.i32                  unary(i32)
76 CtlzI64                ctlz.i64                  unary(i64)
77 AbsI32                 abs.i32                   unary(i32)
78 AbsI64                 abs.i64                   unary(i64)
79 Block                  -                         marker
7A MinI32S                min.i32.s                 binary(i32)
7B MinI32U                min.i32.u                 binary(i32)
7C MaxI32S                max.i32.s                 binary(i32)
7D MaxI32U                max.i32.u                 binary(i32)
7E MinI64S                min.i64.s                 binary(i64)
7F MinI64U                min.i64.u                 binary(i64)
80 MaxI64S                max.i64.s                 binary(i64)
81 MaxI64U                max.i64.u                 binary(i64)
82 CastAnyRef             cast.any.ref              cast_any_ref
83 BranchTable            br_table                  branch_table
84 BufferHash             buffer.hash               buffer_hash
85 DiscardRefs            discard.refs              discard_refs
86 AssignRef              assign.ref                assign_ref
87 CallYieldable          call.yieldable            yieldable_call
88 CallVariadicYieldable  call.variadic.yieldable   call_variadic_yieldable
E0 PrefixExtF32           -                         prefix(ext_f32)
E1 PrefixExtF64           -                         prefix(ext_f64)
"""

EXT_F32 = """
00 GlobalLoadF32          global.load.f32           global_load(f32)
01 GlobalStoreF32         global.store.f32          global_store(f32)
02 GlobalLoadIndirectF32  global.load.indirect.f32  global_load_indirect(f32)
03 GlobalStoreIndirectF32 global.store.indirect.f32 global_store_indirect(f32)
04 ConstF32Zero           const.f32.zero            zero_constant(f32)
05 ConstF32               const.f32                 constant(f32)
06 ListGetF32             list.get.f32              list_get(f32)
07 ListSetF32             list.set.f32              list_set(f32)
08 SelectF32              select.f32                select(f32)
09 SwitchF32              switch.f32                switch(f32)
0A AddF32                 add.f32                   binary(f32)
0B SubF32                 sub.f32                   binary(f32)
0C MulF32                 mul.f32                   binary(f32)
0D DivF32                 div.f32                   binary(f32)
0E RemF32                 rem.f32                   binary(f32)
0F FMAF32                 fma.f32                   ternary(f32)
10 AbsF32                 abs.f32                   unary(f32)
11 NegF32                 neg.f32                   unary(f32)
12 CeilF32                ceil.f32                  unary(f32)
13 FloorF32               floor.f32                 unary(f32)
14 CastSI32F32            cast.si32.f32             conversion(i32,f32)
15 CastUI32F32            cast.ui32.f32             conversion(i32,f32)
16 CastF32SI32            cast.f32.si32             conversion(f32,i32)
17 CastF32UI32            cast.f32.ui32             conversion(f32,i32)
18 BitcastI32F32          bitcast.i32.f32           conversion(i32,f32)
19 BitcastF32I32          bitcast.f32.i32           conversion(f32,i32)
1A AtanF32                atan.f32                  unary(f32)
1B Atan2F32               atan2.f32                 binary(f32)
1C CosF32                 cos.f32                   unary(f32)
1D SinF32                 sin.f32                   unary(f32)
1E ExpF32                 exp.f32                   unary(f32)
1F Exp2F32                exp2.f32                  unary(f32)
20 ExpM1F32               expm1.f32                 unary(f32)
21 LogF32                 log.f32                   unary(f32)
22 Log10F32               log10.f32                 unary(f32)
23 Log1pF32               log1p.f32                 unary(f32)
24 Log2F32                log2.f32                  unary(f32)
25 PowF32                 pow.f32                   binary(f32)
26 RsqrtF32               rsqrt.f32                 unary(f32)
27 SqrtF32                sqrt.f32                  unary(f32)
28 TanhF32                tanh.f32                  unary(f32)
29 ErfF32                 erf.f32                   unary(f32)
2A CmpEQF32O              cmp.eq.f32.o              binary_comparison(f32)
2B CmpEQF32U              cmp.eq.f32.u              binary_comparison(f32)
2C CmpNEF32O              cmp.ne.f32.o              binary_comparison(f32)
2D CmpNEF32U              cmp.ne.f32.u              binary_comparison(f32)
2E CmpLTF32O              cmp.lt.f32.o              binary_comparison(f32)
2F CmpLTF32U              cmp.lt.f32.u              binary_comparison(f32)
30 CmpLTEF32O             cmp.lte.f32.o             binary_comparison(f32)
31 CmpLTEF32U             cmp.lte.f32.u             binary_comparison(f32)
32 CmpNaNF32              cmp.nan.f32               unary_comparison(f32)
33 BufferLoadF32          buffer.load.f32           buffer_load(f32)
34 BufferStoreF32         buffer.store.f32          buffer_store(f32)
35 BufferFillF32          buffer.fill.f32           buffer_fill(f32)
36 RoundF32               round.f32                 unary(f32)
37 MinF32                 min.f32                   binary(f32)
38 MaxF32                 max.f32                   binary(f32)
39 RoundF32Even           round.f32.even            unary(f32)
3A CastF32SI64            cast.f32.si64             conversion(f32,i64)
3B CastF32UI64            cast.f32.ui64             conversion(f32,i64)
3C CastSI64F32            cast.si64.f32             conversion(i64,f32)
3D CastUI64F32            cast.ui64.f32             conversion(i64,f32)
3E FPowIF32               fpowi.f32                 power(f32)
"""

EXT_F64 = """
00 GlobalLoadF64          global.load.f64           global_load(f64)
01 GlobalStoreF64         global.store.f64          global_store(f64)
02 GlobalLoadIndirectF64  global.load.indirect.f64  global_load_indirect(f64)
03 GlobalStoreIndirectF64 global.store.indirect.f64 global_store_indirect(f64)
04 ConstF64Zero           const.f64.zero            zero_constant(f64)
05 ConstF64               const.f64                 constant(f64)
06 ListGetF64             list.get.f64              list_get(f64)
07 ListSetF64             list.set.f64              list_set(f64)
08 SelectF64              select.f64                select(f64)
09 SwitchF64              switch.f64                switch(f64)
0A AddF64                 add.f64                   binary(f64)
0B SubF64                 sub.f64                   binary(f64)
0C MulF64                 mul.f64                   binary(f64)
0D DivF64                 div.f64                   binary(f64)
0E RemF64                 rem.f64                   binary(f64)
0F FMAF64                 fma.f64                   ternary(f64)
10 AbsF64                 abs.f64                   unary(f64)
11 NegF64                 neg.f64                   unary(f64)
12 CeilF64                ceil.f64                  unary(f64)
13 FloorF64               floor.f64                 unary(f64)
14 TruncF64F32            trunc.f64.f32             conversion(f64,f32)
15 ExtF32F64              ext.f32.f64               conversion(f32,f64)
16 CastSI32F64            cast.si32.f64             conversion(i32,f64)
17 CastUI32F64            cast.ui32.f64             conversion(i32,f64)
18 CastF64SI32            cast.f64.si32             conversion(f64,i32)
19 CastF64UI32            cast.f64.ui32             conversion(f64,i32)
1A CastSI64F64            cast.si64.f64             conversion(i64,f64)
1B CastUI64F64            cast.ui64.f64             conversion(i64,f64)
1C CastF64SI64            cast.f64.si64             conversion(f64,i64)
1D CastF64UI64            cast.f64.ui64             conversion(f64,i64)
1E BitcastI64F64          bitcast.i64.f64           conversion(i64,f64)
1F BitcastF64I64          bitcast.f64.i64           conversion(f64,i64)
20 AtanF64                atan.f64                  unary(f64)
21 Atan2F64               atan2.f64                 binary(f64)
22 CosF64                 cos.f64                   unary(f64)
23 SinF64                 sin.f64                   unary(f64)
24 ExpF64                 exp.f64                   unary(f64)
25 Exp2F64                exp2.f64                  unary(f64)
26 ExpM1F64               expm1.f64                 unary(f64)
27 LogF64                 log.f64                   unary(f64)
28 Log10F64               log10.f64                 unary(f64)
29 Log1pF64               log1p.f64                 unary(f64)
2A Log2F64                log2.f64                  unary(f64)
2B PowF64                 pow.f64                   binary(f64)
2C RsqrtF64               rsqrt.f64                 unary(f64)
2D SqrtF64                sqrt.f64                  unary(f64)
2E TanhF64                tanh.f64                  unary(f64)
2F ErfF64                 erf.f64                   unary(f64)
30 CmpEQF64O              cmp.eq.f64.o              binary_comparison(f64)
31 CmpEQF64U              cmp.eq.f64.u              binary_comparison(f64)
32 CmpNEF64O              cmp.ne.f64.o              binary_comparison(f64)
33 CmpNEF64U              cmp.ne.f64.u              binary_comparison(f64)
34 CmpLTF64O              cmp.lt.f64.o              binary_comparison(f64)
35 CmpLTF64U              cmp.lt.f64.u              binary_comparison(f64)
36 CmpLTEF64O             cmp.lte.f64.o             binary_comparison(f64)
37 CmpLTEF64U             cmp.lte.f64.u             binary_comparison(f64)
38 CmpNaNF64              cmp.nan.f64               unary_comparison(f64)
39 BufferLoadF64          buffer.load.f64           buffer_load(f64)
3A BufferStoreF64         buffer.store.f64          buffer_store(f64)
3B BufferFillF64          buffer.fill.f64           buffer_fill(f64)
3C RoundF64               round.f64                 unary(f64)
3D MinF64                 min.f64                   binary(f64)
3E MaxF64                 max.f64                   binary(f64)
3F RoundF64Even           round.f64.even            unary(f64)
40 FPowIF64               fpowi.f64                 power(f64)
"""
