"""LlamaIndex: pip install llama-index-llms-openai-like."""

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(
    model="openai_bls",
    api_base="http://localhost:9000/v1",
    api_key="none",
    is_chat_model=True,
    is_function_calling_model=True,
    temperature=0,
)
for response in llm.stream_chat([ChatMessage(role="user", content="What is the capital of France?")]):
    print(response.delta or "", end="", flush=True)
print()
