"""minigraph: a static-graph deep-learning framework with graph rewriting, after Paddle's static API."""

from . import ops  # noqa: F401
