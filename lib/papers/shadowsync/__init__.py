"""ShadowSync's experiments."""
