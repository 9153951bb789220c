"""What engines and trainers say of their memory in a log, as figures by the contract's names."""
