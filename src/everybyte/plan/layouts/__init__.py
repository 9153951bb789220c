"""The layouts that are legal for a model on a cluster: what can be chosen, what rules out a choice, and the job that a choice makes."""
