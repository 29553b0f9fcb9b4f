"""LangChain: pip install langchain-openai."""

from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="openai_bls", base_url="http://localhost:9000/v1", api_key="none", temperature=0)
for chunk in model.stream("What is the capital of France?"):
    print(chunk.text, end="", flush=True)
print()
