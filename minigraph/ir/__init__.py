"""Program as a graph, and its other forms: text, diff, drawing."""
