// Files that a person drops: the server reads their headers and keeps nothing. Of a large file only the beginning is sent.

import { post } from "./api.js";
import { purpose } from "./job.js";
import { size } from "./words.js";

const SMALL = 4 * 2 ** 20;
/** Headers are rarely longer; where one is, the server says how much it needs. */
const FIRST_SLICE = 2 * 2 ** 20;
const MOST = 32 * 2 ** 20;

/** The job that the files make, and words about them. Raises ApiError. */
export async function readFiles(files, current) {
  let found;
  for (let slice = FIRST_SLICE; !found; ) {
    try {
      found = await post("/api/read", { files: await Promise.all(files.map((file) => described(file, slice))) });
    } catch (error) {
      if (!error.needs || slice >= MOST) throw error;
      slice = Math.min(Math.max(error.needs, 4 * slice), MOST);
    }
  }
  const words = [found.name, ...(found.notes ?? [])].filter(Boolean).join(" · ");
  if (found.job) return { job: found.job, words };
  return { job: withModel(current, found), words };
}

/** The job with another model, and with what its file says about serving. */
function withModel(current, found) {
  const job = { ...current, model: found.model };
  delete job.name;
  if (found.serve) {
    delete job.train;
    const kept = purpose(current) === "serve" && current.serve.engine === found.serve.engine ? current.serve : {};
    job.serve = { ...kept, ...found.serve };
  }
  return job;
}

async function described(file, slice) {
  const most = hasHeader(file) ? slice : SMALL;
  if (!hasHeader(file) && file.size > most) throw new Error(`${file.name} has ${size(file.size)}: no config.json or job file is larger than ${size(most)}`);
  return { name: file.name, size: file.size, base64: await base64(file.slice(0, most)) };
}

function hasHeader(file) {
  return /\.(gguf|safetensors)$/i.test(file.name);
}

/** The bytes of a file as base64. */
export function base64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error("the file cannot be read"));
    reader.readAsDataURL(blob);
  });
}
