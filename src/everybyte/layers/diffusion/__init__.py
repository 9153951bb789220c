"""Diffusion transformers, U-Nets and the autoencoder."""
