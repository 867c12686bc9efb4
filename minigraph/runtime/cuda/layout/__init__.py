"""Layout of a plan: the order of its calls, where temporary memory lies, the streams of the captured graph."""
