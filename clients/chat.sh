#!/usr/bin/env bash
# curl and jq; -N prints what comes at once.
set -euo pipefail

curl -sN localhost:9000/v1/chat/completions -H 'content-type: application/json' -d '{
  "model": "openai_bls",
  "messages": [{"role": "user", "content": "What is the capital of France?"}],
  "temperature": 0,
  "stream": true
}' | sed -un 's/^data: {/{/p' | jq --unbuffered -rj '.choices[0].delta.content // empty'
echo
