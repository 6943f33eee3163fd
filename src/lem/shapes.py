"""Shapes in signatures: `Float[Tensor, "time batch hidden"]`, checked at run time by the tests.

The annotations come from jaxtyping where it is installed (the tests install it). The library itself needs only
torch, numpy and safetensors, so without jaxtyping they stand for the plain tensor type.
"""

from typing import TYPE_CHECKING, Any

__all__ = ["Bool", "Float", "Int"]

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:

        class _Plain:
            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Float = Int = _Plain
