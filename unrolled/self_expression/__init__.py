"""Self-expression as layers: ridge and low-rank attention, learned self-expression."""
