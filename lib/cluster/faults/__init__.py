"""What goes wrong with nodes, connections and messages, and how each world carries it out."""
