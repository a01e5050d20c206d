# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

version: str

def calibrate(instances: list[tuple[Any, int, int]], references: list[tuple[Any, int, Any, int]], /) -> bool: ...

class Link:
    serial: int
    calls: int
    errors: int
    look_every: int
    looking_max: int
    def __init__(
        self,
        waiting: Callable[[Any, str, float], object],
        abandon: Callable[..., object],
        learn: Callable[[Function, tuple[Any, ...]], object],
        unknown: Callable[[], object],
        limits: ContextVar[tuple[Any, ...]],
        /,
    ) -> None: ...
    def attach(self, address: int, owner: object, /) -> None: ...
    def invalidate(self) -> None: ...
    def suspend(self, change: int, /) -> None: ...

class Function:
    __name__: str
    plans: int
    def __init__(self, name: str, slow: Callable[..., Any], link: Link, /) -> None: ...
    def __call__(self, *arguments: Any) -> Any: ...
    def learn(self, serial: int, head: bytes, data_len: int, arguments: tuple[tuple[Any, ...], ...], /) -> None: ...
    def forget(self) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: Any) -> None: ...

class Block:
    def __exit__(self, *exc: object) -> None: ...
