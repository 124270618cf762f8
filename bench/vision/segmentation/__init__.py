"""Train networks that segment scenes, and compare them over paired seeds."""
