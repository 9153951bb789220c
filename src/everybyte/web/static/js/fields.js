// The settings that stand in front: what most people set. All others are under "All settings". Keys are those of the job file.

import { get } from "./job.js";

/** Ways to train, and the values that make them. `null` takes a key away. */
export const METHODS = {
  full: { title: "Full fine-tuning", values: { "train.adapter": null, "train.quantization": null } },
  lora: { title: "LoRA", values: { "train.adapter": { kind: "lora", rank: 16, targets: "all-linear" }, "train.quantization": null } },
  qlora: {
    title: "QLoRA: LoRA on 4-bit weights",
    values: { "train.adapter": { kind: "lora", rank: 16, targets: "all-linear" }, "train.quantization": { format: "nf4", double: true } },
  },
};

/** The method of a job; `other` for one that the list does not hold. */
export function methodOf(job) {
  const [adapter, quantization] = ["train.adapter.kind", "train.quantization.format"].map((key) => get(job, key) ?? "none");
  if (adapter === "none" && quantization === "none") return "full";
  if (adapter !== "lora") return "other";
  return { none: "lora", nf4: "qlora" }[quantization] ?? "other";
}

/** Sizes of an axis that people use. */
const SIZES = [1, 2, 4, 8, 16, 32, 64];

/** Fields with a list of values. Without `usual` the values come from the server, which knows the form of a job. `also` is a key that gets the same value. */
export const FIELDS = {
  train: [
    { key: "train.framework", label: "Framework" },
    { key: "train.precision", label: "Precision" },
    { key: "train.optimizer.name", label: "Optimizer", usual: ["adamw", "adamw-8bit", "paged-adamw-8bit", "adafactor", "sgd", "lion", "muon"] },
    { key: "train.recompute.policy", label: "Activation checkpointing", usual: ["none", "selective", "full"] },
    { key: "train.attention", label: "Attention" },
    { key: "train.sharding", label: "Sharding", when: onSeveral },
    { key: "train.mesh.tp", label: "Tensor parallel", usual: SIZES, when: onSeveral },
    { key: "train.mesh.pp", label: "Pipeline stages", usual: SIZES, when: onSeveral },
  ],
  serve: [
    { key: "serve.engine", label: "Engine" },
    { key: "serve.weights.format", label: "Weights", usual: ["bf16", "fp16", "fp8", "int8", "awq", "gptq", "nvfp4", "mxfp4", "q8_0", "q6_k", "q5_k_m", "q4_k_m"] },
    { key: "serve.kv_dtype.k", also: "serve.kv_dtype.v", label: "KV cache", usual: ["auto", "bf16", "fp16", "fp8", "int8", "q8_0", "q5_1", "q4_0"] },
    { key: "serve.attention", label: "Attention" },
    { key: "serve.mesh.tp", label: "Tensor parallel", usual: SIZES, when: onSeveral },
    { key: "serve.mesh.pp", label: "Pipeline stages", usual: SIZES, when: onSeveral },
  ],
};

/** Sliders. `unit` tokens go in steps from 128 upwards, counts from 1, shares in hundredths. `grow` is the name that the search for the largest value takes. */
export const KNOBS = {
  train: [
    { key: "train.micro_batch", label: "Micro-batch", unit: "count", most: 1024, hint: "sequences per GPU and step" },
    { key: "train.seq_len", label: "Sequence length", unit: "tokens", most: 2 ** 20, hint: "tokens per sequence" },
    { key: "train.adapter.rank", label: "LoRA rank", unit: "count", most: 1024, when: (job) => Boolean(job.train?.adapter) },
  ],
  serve: [
    { key: "serve.context", label: "Context", unit: "tokens", most: 2 ** 21, hint: "tokens per sequence" },
    { key: "serve.sequences", label: "Concurrent sequences", unit: "count", most: 4096 },
    {
      key: "serve.memory_fraction", label: "GPU memory utilization", unit: "share", most: 1,
      when: (job) => ["vllm", "sglang", "lmdeploy", "tensorrt-llm"].includes(job.serve?.engine),
    },
  ],
};

/** Whether a job has several GPUs to lay a model over. */
function onSeveral(job) {
  return (job.hardware?.gpus ?? 1) > 1;
}

/** The values that a slider steps through: exact up to eight, then eight steps for every doubling. */
export function stops({ unit, most }) {
  if (unit === "share") return Array.from({ length: 100 }, (_, index) => (index + 1) / 100);
  const least = unit === "tokens" ? 128 : 1;
  const values = [];
  for (let value = least, step = least; value <= most; value += step) {
    values.push(value);
    if (value >= 16 * step) step *= 2;
  }
  return values;
}

/** Where on its way from 0 to 1 a slider stands for a value; between two stops in proportion. */
export function position(values, value) {
  const next = values.findIndex((stop) => stop >= value);
  if (next < 0) return 1;
  if (next === 0) return 0;
  const part = (value - values[next - 1]) / (values[next] - values[next - 1]);
  return (next - 1 + part) / (values.length - 1);
}
