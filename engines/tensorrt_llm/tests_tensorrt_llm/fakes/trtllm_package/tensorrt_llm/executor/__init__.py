"""Names of tensorrt_llm.executor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorrt_llm._recorded import table
from tensorrt_llm._result import CompletionOutput, RequestError

if TYPE_CHECKING:
    _LoRARequest = object
else:
    _LoRARequest = table.made("LoRARequest")


class LoRARequest(_LoRARequest):
    """As the table says, and its path must exist."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        path = getattr(self, "lora_path", None)
        if path is not None and not Path(path).exists():
            raise ValueError(f"lora_path ({path}) does not exist.")


__all__ = ["CompletionOutput", "LoRARequest", "RequestError"]
