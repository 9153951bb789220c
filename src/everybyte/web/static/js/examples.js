// Jobs to start from; the first one is what a first visit shows.

export const EXAMPLES = [
  {
    title: "LoRA on 24 GB",
    job: {
      model: "meta-llama/Meta-Llama-3.1-8B",
      hardware: { gpu: "rtx-4090", gpus: 1 },
      train: {
        framework: "trl", micro_batch: 1, seq_len: 2048, precision: "bf16-mixed", dtypes: { weights: "bf16" }, optimizer: { name: "adamw", impl: "fused" },
        adapter: { kind: "lora", rank: 16, targets: "all-linear" }, recompute: { policy: "full" }, attention: "sdpa",
      },
    },
  },
  {
    title: "Serve with vLLM",
    job: {
      model: "meta-llama/Meta-Llama-3.1-8B",
      hardware: { gpu: "l40s", gpus: 1 },
      serve: { engine: "vllm", context: 32768, memory_fraction: 0.9 },
    },
  },
  {
    title: "70B, FSDP2, 64 GPUs",
    job: {
      model: "meta-llama/Meta-Llama-3.1-70B",
      hardware: { gpu: "h100-80gb", gpus: 64, gpus_per_node: 8 },
      train: {
        framework: "torchtitan", micro_batch: 1, seq_len: 8192, precision: "bf16-mixed", mesh: { tp: 8, sp: true }, sharding: "fsdp2", compile: true,
        recompute: { policy: "full" },
      },
    },
  },
  {
    title: "GGUF on a desktop",
    job: {
      model: "Qwen/Qwen3-30B-A3B",
      hardware: { gpu: "rtx-4090", gpus: 1 },
      serve: { engine: "llama.cpp", weights: { format: "q4_k_m" }, context: 32768 },
    },
  },
];
