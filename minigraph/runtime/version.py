"""The version of the package, which checkpoints name."""

VERSION = "0.1.0"
