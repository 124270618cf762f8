"""Denoising by solved methods and by trained networks."""
