"""Image and sound: stems, convolution networks, what carries images into a language model."""
