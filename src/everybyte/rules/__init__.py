"""How things are laid out in memory: number formats, optimizer states, packed weights, the course of a step, what the device adds."""
