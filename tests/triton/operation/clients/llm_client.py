"""The command `llm` with the server in extra-openai-models.yaml: `llm_client.py BASE_URL` prints one JSON object."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MODELS = """\
- model_id: demo
  model_name: openai_bls
  api_base: {base_url}
  supports_tools: true
  supports_schema: true
"""
TOOL = '''
def get_weather(city: str) -> str:
    """Get the weather in a city"""
    return '{"temperature": 21, "condition": "sunny"}'
'''
SCHEMA = {
    "type": "object",
    "properties": {"country": {"type": "string"}, "capital": {"type": "string"}},
    "required": ["country", "capital"],
    "additionalProperties": False,
}


def find(base_url: str, folder: str) -> dict[str, str]:
    """What the command prints: streamed, with a tool of our own, and whole with a schema."""
    (Path(folder) / "extra-openai-models.yaml").write_text(MODELS.format(base_url=base_url))
    environment = {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}

    def ask(question: str, *options: str) -> str:
        command = [sys.executable, "-m", "llm", "prompt", "-m", "demo", question, "-o", "temperature", "0", *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
        if done.returncode:
            raise SystemExit(done.stderr)
        return done.stdout.removesuffix("\n")

    return {
        "streamed": ask("What is machine learning?"),
        "tool": ask("What's the weather in Paris?", "--functions", TOOL),
        "schema": ask("Answer in JSON: what is the capital of France?", "--schema", json.dumps(SCHEMA), "--no-stream"),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as user_path:
        print(json.dumps(find(sys.argv[1], user_path)))
