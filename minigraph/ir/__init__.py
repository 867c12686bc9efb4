"""Program as a networkx graph, and its other forms: text, diff, drawing."""
