"""Freed memory kept for later allocations of about the same size.

    Root dies ──> Memory.recycle ──> Block ──> Pool ──> Device.pooled_memory ──> new Memory, state FRESH

Only the memory is used again: each allocation has a Memory and a Root of its own, so no state is left over.
What somebody still sees through a view never comes here (hostmemory.Pages).

Sizes are rounded up to classes, eight a power of two, so at most an eighth is lost. The newest block is used
first, since it may still be in a cache; where the device is not done with it, the oldest. Past ``limit``
bytes, blocks of the class that was not used for longest are dropped.

What is saved is zeroing and page faults of host memory, and on a GPU the driver's allocation and pinning;
benchmarks/transfers.py measures it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from halgpu.devices.forks import keep_forever

if TYPE_CHECKING:
    from halgpu.devices.memory import Block

DEFAULT_LIMIT = 256 << 20

SMALLEST = 256
"""Bytes; smaller allocations share this class."""

# Blocks of one class that wait for the device are left alone up to either of these; then it is waited for.
MAX_WAITING_BYTES = 32 << 20
MAX_WAITING = 128


class Pool:
    """A device's pool. ``limit`` (bytes, 0 switches it off) may be changed at any time.

    ``bytes_pooled`` is what lies here now, ``bytes_peak`` the most that ever did, ``hits`` and ``misses`` how
    often an allocation found a block and did not.
    """

    __slots__ = (
        "_classes", "_limit", "_lock", "_returned", "bytes_peak", "bytes_pooled", "hits", "minimum", "misses",
    )  # fmt: skip

    def __init__(self, limit: int = DEFAULT_LIMIT, minimum: int = 0) -> None:
        self._limit = limit
        self.minimum = minimum
        """Bytes; smaller allocations are never kept, since making a new one is as quick."""
        self._classes: OrderedDict[int, deque[Block]] = OrderedDict()
        self._returned: deque[tuple[int, Block]] = deque()
        self._lock = threading.Lock()
        self.bytes_pooled = self.bytes_peak = self.hits = self.misses = 0

    def __repr__(self) -> str:
        return f"<Pool of {self.bytes_pooled} bytes, at most {self._limit}>"

    @property
    def limit(self) -> int:
        """Most bytes that are kept."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self.trim(limit)

    def capacity(self, byte_length: int) -> int:
        """Return the size of the class that an allocation belongs to; its own size where none is kept."""
        if byte_length <= SMALLEST:
            return SMALLEST
        step = max(1 << (byte_length.bit_length() - 4), SMALLEST)
        rounded = -(-byte_length // step) * step
        return rounded if rounded <= self._limit else byte_length

    def take(self, capacity: int) -> Block | None:
        """Return a block of that capacity, or None when there is none that can be had without waiting."""
        block: Block | None = None
        with self._lock:
            blocks = self._classes.get(capacity)
            if blocks and blocks[-1].ready():
                block = blocks.pop()
            elif blocks and blocks[0].ready():
                block = blocks.popleft()
            if block is not None:
                self._classes.move_to_end(capacity)
                self.bytes_pooled -= capacity
                self.hits += 1
            else:
                self.misses += 1
        if self._returned:
            self._settle()
        return block

    def crowded(self, capacity: int) -> bool:
        """Whether so much of a class waits for the device that waiting beats allocating."""
        waiting = len(self._classes.get(capacity, ()))
        return waiting > MAX_WAITING or waiting * capacity > MAX_WAITING_BYTES

    def give(self, capacity: int, block: Block) -> None:
        """Keep a block; may run inside a garbage collection, in any thread."""
        self._returned.append((capacity, block))
        self._settle()

    def trim(self, keep: int = 0) -> int:
        """Drop blocks until at most ``keep`` bytes are left; returns how many bytes went."""
        with self._lock:
            before = self.bytes_pooled
            dropped = self._shrink(keep)
            after = self.bytes_pooled
        for block in dropped:
            block.drop()
        self._settle()
        return before - after

    def abandon(self) -> None:
        """Go on empty in a forked child; what the parent pooled is never dropped there."""
        keep_forever((self._classes, self._returned))
        self._classes, self._returned, self.bytes_pooled = OrderedDict(), deque(), 0
        self._lock = threading.Lock()  # another thread of the parent may hold the other

    def _settle(self) -> None:
        # The lock is only tried: this may interrupt its holder, who settles what is left on the way out. A
        # holder that has just looked and one that fails to get the lock cannot both leave something behind,
        # since the holder looks again after letting go.
        while self._returned:
            dropped: list[Block] = []
            held = False
            try:
                # Unpacked, since a signal's exception may come between a call and what is done with its result,
                # but not between these: the lock would stay taken for ever.
                (held,) = map(self._lock.acquire, (False,))
                if not held:
                    return
                while self._returned:
                    capacity, block = self._returned.popleft()
                    self._classes.setdefault(capacity, deque()).append(block)
                    self.bytes_pooled += capacity
                    if self.bytes_pooled > self._limit:
                        dropped += self._shrink(self._limit)
                    self.bytes_peak = max(self.bytes_peak, self.bytes_pooled)
            finally:
                if held:
                    self._lock.release()
            for block in dropped:
                block.drop()

    def _shrink(self, keep: int) -> list[Block]:
        dropped: list[Block] = []
        # Of none, all go, whatever the count says: an interrupt may have come between a block and the count of it.
        while self.bytes_pooled > keep or (not keep and self._classes):
            if not self._classes:
                break
            capacity, blocks = next(iter(self._classes.items()))
            if blocks:
                dropped.append(blocks.popleft())
                self.bytes_pooled -= capacity
            if not blocks:
                del self._classes[capacity]
        if not self._classes:
            self.bytes_pooled = 0
        return dropped
