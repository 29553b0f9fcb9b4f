"""Families of chat models, from a folder as a hub has it to text: built by the command line, asked on
/v1/chat/completions by their template and tokenizer, and compared with transformers' own chat pipelines.
"""
