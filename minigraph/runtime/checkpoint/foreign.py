"""Files of others that scripts may hand over, known by their first bytes; they are named and never opened.

A pickle runs code while it is read, so minigraph has no way to open one.
"""

from __future__ import annotations

import re

PREFIX = 16  # bytes that tell
PROGRAM = re.compile(rb"\x0a[\x80-\xff]*[\x00-\x7f]\x08\x00\x10", re.S)  # blocks, of which the first is number 0
IN_PADDLE = (
    "write it anew where Paddle is installed: state = paddle.load(path, return_numpy=True);"
    " safetensors.numpy.save_file(state, new_path); then mg.load(new_path) here"
)
MODEL_IN_PADDLE = (
    "build the program here by the same code; of its weights, where Paddle is installed: state ="
    " paddle.static.load_program_state(prefix); safetensors.numpy.save_file(state, new_path)"
)


def foreign(head: bytes) -> tuple[str, str] | None:
    """What a file that begins with these bytes is, and what to do; None where that is not known."""
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "a pickle, as paddle.save writes it, which minigraph never opens: it could run any code", IN_PADDLE
    if head[:4] == b"PK\x03\x04":
        return "a zip of pickles, which minigraph never opens: it could run any code", IN_PADDLE
    if head[:16] == bytes(16):
        return "weights of a Paddle inference model, a form that minigraph does not read", MODEL_IN_PADDLE
    if PROGRAM.match(head):
        return "a program of Paddle's (protobuf), a form that minigraph does not read", MODEL_IN_PADDLE
    return None
