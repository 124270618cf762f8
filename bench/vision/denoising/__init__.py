"""Denoising: methods that are solved beside networks that are trained."""
