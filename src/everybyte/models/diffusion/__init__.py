"""Denoising networks of diffusion pipelines."""
