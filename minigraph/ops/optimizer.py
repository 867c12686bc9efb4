"""Parameter updates."""
