"""The three loops that execute rules, and in wings what they are made of."""
