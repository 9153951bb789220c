"""Serving engines: commands and files of vLLM, SGLang, llama.cpp, ollama, TGI, TensorRT-LLM and LMDeploy, read as jobs and written from them.

The flags of an engine are data: `vllm.csv` and so on, one line a flag, with its other names, what its value is, and the job key that it sets. `-` is a flag
without effect on memory, `extra` one that a job keeps under its own name, `*` one that the engine's module reads.
"""
