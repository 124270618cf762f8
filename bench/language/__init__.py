"""Language models that differ in one part, on words."""
