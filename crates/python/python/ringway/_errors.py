"""The exceptions of ringway. Each carries who, what and what to do."""

from __future__ import annotations

from typing import Any


class Error(RuntimeError):
    """What every call raises when it fails; its classes say what kind of failure it is.

    Attributes:
        kind: ``"device"``, ``"system"``, ``"internal"``, ``"invalid_argument"``, ``"invalid_usage"``, ``"remote"`` or
            ``"timeout"``.
        rank: the rank on which it was raised, or None before there is one.
        culprits: the ranks at fault, each a dict with ``rank``, ``host`` and ``pid``.
        peer: the rank of the first of them, or None.
        operation: the operation it happened in, or None.
        advice: what to do next, or None.

    >>> try:
    ...     ringway.Buffer(object())
    ... except ringway.Error as error:
    ...     print(error.kind)
    invalid_argument
    """

    kind: str = "internal"

    def __init__(
        self,
        message: str = "",
        *,
        rank: int | None = None,
        culprits: list[dict[str, Any]] | None = None,
        operation: str | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.culprits = culprits or []
        self.peer: int | None = self.culprits[0]["rank"] if self.culprits else None
        self.operation = operation
        self.advice = advice

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.args, self.__dict__)


class DeviceError(Error):
    """A GPU's driver refused something."""

    kind = "device"


class SystemFailure(Error):
    """The operating system refused something."""

    kind = "system"


class InternalError(Error):
    """A broken promise of ringway's own: a bug."""

    kind = "internal"


class InvalidArgument(Error, ValueError):
    """An argument is wrong; nothing was sent."""

    kind = "invalid_argument"


class InvalidUsage(Error):
    """Calls do not fit together: across ranks, or in this order."""

    kind = "invalid_usage"


class RemoteError(Error, ConnectionError):
    """Another rank died or gave up, or the network to it broke."""

    kind = "remote"


class Timeout(Error, TimeoutError):
    """A deadline passed."""

    kind = "timeout"


_CLASSES = {
    one.kind: one
    for one in (
        DeviceError,
        SystemFailure,
        InternalError,
        InvalidArgument,
        InvalidUsage,
        RemoteError,
        Timeout,
    )
}


def from_native(
    kind: str,
    message: str,
    rank: int | None,
    culprits: list[dict[str, Any]],
    operation: str | None,
    advice: str | None,
) -> Error:
    """The exception for an error of the native module."""
    made = _CLASSES.get(kind, Error)
    return made(message, rank=rank, culprits=culprits, operation=operation, advice=advice)
