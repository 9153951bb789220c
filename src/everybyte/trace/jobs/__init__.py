"""A job file as a program: the model of transformers (and peft) that it names, built without weights, in the loop of its framework."""
