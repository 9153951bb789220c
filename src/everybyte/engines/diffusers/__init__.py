"""Pipelines of diffusers: text encoders, a transformer or U-Net, and the autoencoder that decodes the latents."""
