"""Networks that are no decoder alone: text and image encoders, encoder-decoders, convolution networks."""
