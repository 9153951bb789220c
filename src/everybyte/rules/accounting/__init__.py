"""What every wing writes its answer with: accounts and ranks, settings with their origin, formulas as text, what the device needs beside tensors."""
