"""Modules that each model's process must not load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from openai_bls.triton_models.preprocessing.prompt import PromptEncoder

REPOSITORY = Path(__file__).resolve().parents[3] / "model_repository"
MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "openai_bls")

_SERVER = {"starlette", "uvicorn", "uvloop"}
_ENGINE = {"torch", "transformers", "safetensors", "accelerate"}

# Triton's own modules exist only in a stub.
_STUB = """
import sys, types
for name in ("triton_python_backend_utils", "c_python_backend_utils"):
    sys.modules[name] = types.ModuleType(name)
"""
_LOADED = "\nimport json; print(json.dumps([name for name, module in sys.modules.items() if module]))"


def run(code: str) -> str:
    """What `code` prints in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", _STUB + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded(code: str) -> set[str]:
    """The modules that a fresh interpreter has after `code`."""
    return set(json.loads(run(code + _LOADED)))


def imported_model(model: str) -> str:
    return (
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('model', {str(REPOSITORY / model / '1' / 'model.py')!r})\n"
        "model = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(model)\n"
    )


@pytest.mark.parametrize("model", MODELS)
def test_a_model_file_by_itself_is_light(model: str) -> None:
    """Triton runs it in one more process, before the model's own, to ask for the configuration."""
    modules = loaded(imported_model(model))
    assert not modules & (_ENGINE | _SERVER | {"jinja2", "tokenizers", "asyncio"})


def test_preprocessing(tokenizer_dir: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from openai_bls.triton_models import stub_process\n"
        "from openai_bls.triton_models.preprocessing.model import Preprocessing\n"
        "stub_process.keep_torch_out()\n"
        f"Preprocessing(Path({str(tokenizer_dir)!r}))\n"
    )
    modules = loaded(code)
    assert "transformers" in modules
    assert not modules & (_SERVER | {"torch", "accelerate", "openai_bls.api.http"})
    assert not [name for name in modules if name.startswith("openai_bls_")]


@pytest.mark.parametrize("text", ["Two words, 你好 and 🤷🏼‍♀️.", "<|im_start|>user\n  x<|im_end|>"])
def test_tokens_are_the_same_without_torch(tokenizer_dir: Path, text: str) -> None:
    code = (
        "from pathlib import Path\n"
        "from openai_bls.triton_models import stub_process\n"
        "from openai_bls.triton_models.preprocessing.prompt import PromptEncoder\n"
        "stub_process.keep_torch_out()\n"
        f"print(PromptEncoder(Path({str(tokenizer_dir)!r})).encode({text!r}))\n"
    )
    assert json.loads(run(code)) == PromptEncoder(tokenizer_dir).encode(text)


def test_postprocessing(tokenizer_dir: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from openai_bls.triton_models.postprocessing.model import Postprocessing\n"
        f"Postprocessing(Path({str(tokenizer_dir)!r}))\n"
    )
    # The vocabulary is read without making the tokenizer.
    assert not loaded(code) & (_ENGINE | _SERVER | {"jinja2", "tokenizers", "asyncio"})


def test_openai_bls(tokenizer_dir: Path) -> None:
    code = (
        "import openai_bls.triton_models.openai_bls.runtime\n"
        "from openai_bls.output.detokenizer import factory\n"
        f"factory.load({str(tokenizer_dir)!r})\n"
    )
    # Most engines are reached through the exchange, and gRPC costs memory and time.
    unwanted = {"jinja2", "tokenizers", "grpc", "tritonclient", "openai_bls.engines.registry"}
    assert not loaded(code) & (_ENGINE | unwanted)


def test_tensorrt_llm_with_the_null_engine() -> None:
    code = "import openai_bls.engines.null.engine, openai_bls.triton_models.tensorrt_llm.frontend\n"
    modules = loaded(imported_model("tensorrt_llm") + code)
    assert not modules & (_ENGINE | _SERVER | {"jinja2", "tokenizers", "tritonclient"})
