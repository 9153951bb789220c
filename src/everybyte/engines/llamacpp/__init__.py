"""llama.cpp, its fork ik_llama.cpp, and ollama, which runs it."""
