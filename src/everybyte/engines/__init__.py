"""One folder a framework: what only it does. `registry` says which folder answers which job."""
