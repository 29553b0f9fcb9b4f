"""Images of requests: from where a request says they are to pixels, within limits of bytes, pixels, time and memory.

Imports nothing of pipeline. Bytes come from `data:` URIs, from allowed hosts (`fetch`) or from uploaded files; they are
decoded in separate processes (`decoder`), since a decoder is what a hostile image attacks.
"""
