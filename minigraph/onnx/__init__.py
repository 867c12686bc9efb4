"""Programs to ONNX files and back, for other runtimes and viewers: `program.to_onnx("net.onnx")`.

    forms/       each operator in standard ones
    export.py    Program -> Model       load.py      Model -> Program
    protobuf.py  Model -> file          reading.py   file -> Model
"""

from . import forms
from .faces import load, to_onnx

__all__ = ["forms", "load", "to_onnx"]
