"""Train classifiers that differ in one part, and compare them over paired seeds."""
