"""A ledger of time: how long a training step, a prefill and a decoded token take, every term a row with its formula, numbers and source."""
