"""Graphs of the largest prompt, as llama.cpp and ik_llama.cpp build them."""
