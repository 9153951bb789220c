"""What a network is made of. Each layer writes its forward pass once, as steps on a tape; parameters, tensors saved for backward,
temporaries, outputs and cache all derive from that one description."""
