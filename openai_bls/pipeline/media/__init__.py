"""Images and audio of requests: from where a request has them to pixels and samples, within limits.

Imports nothing of pipeline. Bytes of images come from `data:` URIs, from allowed hosts (`fetch`) or from uploaded
files, those of audio from the request (`audio`). They are decoded in separate processes (`decoder_pool`), since a
decoder is what a hostile file attacks.
"""
