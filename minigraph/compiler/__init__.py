"""A Program and a BuildStrategy become the Program that runs, and a report of what happened on the way."""

from .compiler import CompiledProgram

__all__ = ["CompiledProgram"]
