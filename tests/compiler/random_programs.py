"""Random programs at HAL level: globals, initializers, functions, branches, loops, buffers.

They do nothing undefined: divisors are constants, shifts are by less than the width, accesses lie in the buffer.
"""

from __future__ import annotations

from random import Random

INTEGERS = ("i8", "i16", "i32", "i64", "index")
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64, "f32": 32}
BUFFER = 32
WHOLE = "!util.buffer"
"""The type of buffers of that many bytes, which values may be; parts of buffers may not."""
PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
BINARY = ("addi", "subi", "muli", "andi", "ori", "xori", "minsi", "maxsi", "minui", "maxui")
DIVISIONS = ("divsi", "divui", "remsi", "remui", "ceildivui", "ceildivsi")
ARGUMENTS = ("i32", "i64", "i8")
RESULTS = ("i32", "i64", "i8", "i1", "f32")

Scope = list[tuple[str, str]]
"""Names and types of values that may be used."""


class Writer:
    """Writes one program."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lines: list[str] = []
        self.number = 0
        self.globals: dict[str, str] = {}
        self.functions: list[str] = []

    def name(self, hint: str = "v") -> str:
        self.number += 1
        return f"{hint}_{self.number}_"

    def line(self, text: str) -> None:
        self.lines.append(f"    {text}")

    def program(self) -> str:
        self.lines.append("module @m {")
        self.lines.append("  util.global private mutable @bytes : !util.buffer")
        for _ in range(self.random.randint(1, 4)):
            name, type_ = self.name("g"), self.random.choice((*INTEGERS, "f32"))
            value = f" = {self.literal(type_)} : {type_}" if self.random.random() < 0.6 else f" : {type_}"
            self.lines.append(f"  util.global private mutable @{name}{value}")
            self.globals[name] = type_
        self.initializer(first=True)
        for _ in range(self.random.randint(0, 2)):
            self.initializer()
        for _ in range(self.random.randint(0, 3)):
            self.function(public=False)
        for _ in range(self.random.randint(0, 1)):
            self.initializer()
        self.function(public=True)
        self.lines.append("}")
        return "\n".join(self.lines) + "\n"

    def literal(self, type_: str) -> str:
        if type_ == "f32":
            return self.random.choice(("0.0", "-0.0", "1.5", "-3.25", "0x7F800000", "1.0e-3"))
        if type_ == "i1":
            return self.random.choice(("true", "false"))
        half = 1 << (BITS[type_] - 1)
        return str(self.random.choice((0, 1, -1, half - 1, -half, self.random.randint(-half, half - 1))))

    # Functions.

    def initializer(self, first: bool = False) -> None:
        self.lines.append("  util.initializer {")
        if first:
            size = self.constant("index", str(BUFFER))
            self.line(f"%made = util.buffer.alloc uninitialized : !util.buffer{{%{size}}}")
            self.line("util.global.store %made, @bytes : !util.buffer")
        scope = self.body([], 1)
        for name, type_ in self.globals.items():
            if self.random.random() < 0.5:
                self.line(f"util.global.store %{self.use(scope, type_)}, @{name} : {type_}")
        self.line("util.return")
        self.lines.append("  }")

    def function(self, public: bool) -> None:
        name = "main" if public else self.name("f")
        scope = [(f"a{number}", type_) for number, type_ in enumerate(ARGUMENTS)]
        arguments = ", ".join(f"%{value}: {type_}" for value, type_ in scope)
        word = "public" if public else "private"
        policy = ""
        if not public and self.random.random() < 0.3:
            policy = " attributes {inlining_policy = #util.inline.never}"
        self.lines.append(f"  util.func {word} @{name}({arguments}) -> ({', '.join(RESULTS)}){policy} {{")
        scope = self.body(scope, 2)
        values = ", ".join(f"%{self.use(scope, type_)}" for type_ in RESULTS)
        self.line(f"util.return {values} : {', '.join(RESULTS)}")
        self.lines.append("  }")
        self.functions.append(name)

    def body(self, scope: Scope, depth: int) -> Scope:
        """Statements; returns what may be used after them."""
        scope = list(scope)
        for _ in range(self.random.randint(1, 6)):
            kind = self.random.random()
            if kind < 0.15 and depth:
                scope = self.branch(scope, depth - 1)
            elif kind < 0.25 and depth:
                self.loop(scope)
            elif kind < 0.35 and self.functions:
                self.call(scope)
            elif kind < 0.6:
                self.memory(scope)
            else:
                self.value(scope)
        return scope

    # Statements.

    def constant(self, type_: str, text: str | None = None) -> str:
        name = self.name("c")
        value = self.literal(type_) if text is None else text
        suffix = "" if type_ == "i1" else f" : {type_}"
        self.line(f"%{name} = arith.constant {value}{suffix}")
        return name

    def use(self, scope: Scope, type_: str) -> str:
        found = [name for name, kind in scope if kind == type_]
        if type_ == WHOLE:
            return self.random.choice(found) if found and self.random.random() < 0.8 else self.whole(scope)
        return self.random.choice(found) if found and self.random.random() < 0.9 else self.constant(type_)

    def whole(self, scope: Scope) -> str:
        """A buffer of the program: the one that lasts, a new one, a copy, or one of two."""
        size = self.constant("index", str(BUFFER))
        match self.random.randint(0, 3):
            case 0:
                text = f"util.buffer.alloc uninitialized : !util.buffer{{%{size}}}"
            case 1 if any(kind == WHOLE for _, kind in scope):
                zero, source = self.constant("index", "0"), self.use(scope, WHOLE)
                text = f"util.buffer.slice %{source}[%{zero}] : !util.buffer{{%{size}}} -> !util.buffer{{%{size}}}"
            case 2 if any(kind == WHOLE for _, kind in scope):
                one, other, condition = self.use(scope, WHOLE), self.use(scope, WHOLE), self.use(scope, "i1")
                text = f"arith.select %{condition}, %{one}, %{other} : !util.buffer"
            case _:
                text = "util.global.load @bytes : !util.buffer"
        self.define(scope, WHOLE, text)
        return scope[-1][0]

    def define(self, scope: Scope, type_: str, text: str) -> None:
        name = self.name()
        self.line(f"%{name} = {text}")
        scope.append((name, type_))

    def value(self, scope: Scope) -> None:
        random = self.random
        type_ = random.choice(INTEGERS)
        left, right = self.use(scope, type_), self.use(scope, type_)
        match random.randint(0, 6):
            case 0:
                self.define(
                    scope, "i1", f"arith.cmpi {random.choice(PREDICATES)}, %{left}, %{right} : {type_}"
                )
            case 1:
                condition = self.use(scope, "i1")
                self.define(scope, type_, f"arith.select %{condition}, %{left}, %{right} : {type_}")
            case 2:
                divisor = self.constant(type_, str(random.randint(1, 100)))
                self.define(scope, type_, f"arith.{random.choice(DIVISIONS)} %{left}, %{divisor} : {type_}")
            case 3:
                amount = self.constant(type_, str(random.randrange(BITS[type_])))
                verb = random.choice(("shli", "shrsi", "shrui"))
                self.define(scope, type_, f"arith.{verb} %{left}, %{amount} : {type_}")
            case 4:
                self.convert(scope)
            case 5:
                one, other = self.use(scope, "f32"), self.use(scope, "f32")
                self.define(scope, "f32", f"arith.{random.choice(('addf', 'mulf'))} %{one}, %{other} : f32")
            case _:
                self.define(scope, type_, f"arith.{random.choice(BINARY)} %{left}, %{right} : {type_}")

    def convert(self, scope: Scope) -> None:
        source, target = self.random.sample(("i1", "i8", "i16", "i32", "i64"), 2)
        value = self.use(scope, source)
        verb = "trunci" if BITS[source] > BITS[target] else self.random.choice(("extsi", "extui"))
        if self.random.random() < 0.3:
            source, target = self.random.choice((("i32", "index"), ("index", "i32"), ("index", "i64")))
            value, verb = self.use(scope, source), self.random.choice(("index_cast", "index_castui"))
        self.define(scope, target, f"arith.{verb} %{value} : {source} to {target}")

    def memory(self, scope: Scope) -> None:
        random = self.random
        if random.random() < 0.5 and self.globals:
            name, type_ = random.choice(list(self.globals.items()))
            if random.random() < 0.5:
                self.define(scope, type_, f"util.global.load @{name} : {type_}")
            else:
                self.line(f"util.global.store %{self.use(scope, type_)}, @{name} : {type_}")
            return
        type_ = random.choice(("i8", "i16", "i32", "i64", "f32"))
        size = BITS[type_] // 8
        buffer, at, whole = self.buffer(scope, size)
        length = self.constant("index", str(size))
        match random.randint(0, 4):
            case 0:
                text = (
                    f"util.buffer.load %{buffer}[%{at} for %{length}] : !util.buffer{{%{whole}}} -> {type_}"
                )
                self.define(scope, type_, text)
            case 1:
                value = self.use(scope, type_)
                self.line(
                    f"util.buffer.fill %{value}, %{buffer}[%{at} for %{length}] : {type_} -> !util.buffer{{%{whole}}}"
                )
            case 2:
                other, place, rest = self.buffer(scope, size)
                self.define(
                    scope,
                    "i1",
                    f"util.buffer.compare %{buffer}[%{at}], %{other}[%{place}], %{length} : "
                    f"!util.buffer{{%{whole}}}, !util.buffer{{%{rest}}}",
                )
            case _:
                value = self.use(scope, type_)
                self.line(
                    f"util.buffer.store %{value}, %{buffer}[%{at} for %{length}] : {type_} -> "
                    f"!util.buffer{{%{whole}}}"
                )

    def buffer(self, scope: Scope, size: int) -> tuple[str, str, str]:
        """The program's buffer or a part of it, an offset for a value of that size, and its size."""
        name, whole = self.use(scope, WHOLE), self.constant("index", str(BUFFER))
        if self.random.random() < 0.1:
            self.line(f"util.global.store %{name}, @bytes : !util.buffer")
        if self.random.random() < 0.6:
            return name, self.constant("index", str(size * self.random.randrange(BUFFER // size))), whole
        part, start, half = self.name("p"), self.constant("index", "8"), self.constant("index", "16")
        self.line(
            f"%{part} = util.buffer.subspan %{name}[%{start}] : !util.buffer{{%{whole}}} -> !util.buffer{{%{half}}}"
        )
        return part, self.constant("index", str(size * self.random.randrange(16 // size))), half

    def call(self, scope: Scope) -> None:
        values = ", ".join(f"%{self.use(scope, type_)}" for type_ in ARGUMENTS)
        name = self.name("r")
        types = f"({', '.join(ARGUMENTS)}) -> ({', '.join(RESULTS)})"
        self.line(
            f"%{name}:{len(RESULTS)} = util.call @{self.random.choice(self.functions)}({values}) : {types}"
        )
        scope += [(f"{name}#{number}", type_) for number, type_ in enumerate(RESULTS)]

    def branch(self, scope: Scope, depth: int) -> Scope:
        """Two ways that meet, with values for the block where they do."""
        yes, no, rest = self.name("yes"), self.name("no"), self.name("rest")
        types = [
            self.random.choice((*INTEGERS, "f32", "i1", WHOLE, WHOLE))
            for _ in range(self.random.randint(0, 3))
        ]
        self.line(f"cf.cond_br %{self.use(scope, 'i1')}, ^{yes}, ^{no}")
        for label in (yes, no):
            self.lines.append(f"  ^{label}:")
            inner = self.body(scope, depth)
            values = ", ".join(f"%{self.use(inner, type_)}" for type_ in types)
            self.line(f"cf.br ^{rest}({values} : {', '.join(types)})" if types else f"cf.br ^{rest}")
        arguments = [(self.name("x"), type_) for type_ in types]
        shown = ", ".join(f"%{name}: {type_}" for name, type_ in arguments)
        self.lines.append(f"  ^{rest}({shown}):" if types else f"  ^{rest}:")
        return [*scope, *arguments]

    def loop(self, scope: Scope) -> None:
        """A loop that hands two values round, which change places."""
        type_ = self.random.choice((*INTEGERS, WHOLE, WHOLE))
        low, high, step = (
            self.constant("index", text) for text in ("0", str(self.random.randint(0, 5)), "1")
        )
        one, other = self.use(scope, type_), self.use(scope, type_)
        name, i, x, y, z = (self.name(hint) for hint in ("l", "i", "x", "y", "z"))
        self.line(
            f"%{name}:2 = scf.for %{i} = %{low} to %{high} step %{step} "
            f"iter_args(%{x} = %{one}, %{y} = %{other}) -> ({type_}, {type_}) {{"
        )
        if type_ == WHOLE:
            flag = self.use(scope, "i1")
            self.line(f"  %{z} = arith.select %{flag}, %{x}, %{y} : {type_}")
        else:
            self.line(f"  %{z} = arith.{self.random.choice(BINARY)} %{x}, %{y} : {type_}")
        given = self.random.choice(((y, x), (y, z), (z, x)))
        self.line(f"  scf.yield %{given[0]}, %{given[1]} : {type_}, {type_}")
        self.line("}")
        scope += [(f"{name}#0", type_), (f"{name}#1", type_)]
