"""From the last hidden states to the loss or to log-probabilities."""
