// A job is a plain object in the contract's form. These functions read it and make changed copies; none changes the job it is given.

/** Parts that one word can stand for, and the key whose value the word is: the table of job/shorthand.py. */
const HEADS = {
  "train.optimizer": "name", "train.adapter": "kind", "train.quantization": "format", "train.pipeline": "schedule", "train.recompute": "policy",
  "train.loss": "kind", "serve.weights": "format", "serve.draft": "method",
};

/** The value at a key path such as `train.optimizer.name`; undefined if the job does not say. `optimizer: adamw` says it, too. */
export function get(job, path) {
  const keys = path.split(".");
  return keys.reduce((part, key, index) => {
    const whole = spelt(keys.slice(0, index).join("."), part);
    return whole && typeof whole === "object" ? whole[key] : undefined;
  }, job);
}

/** The job with one value; undefined, null and "" take the key away, and with it sections that are left empty. */
export function set(job, path, value, above = "") {
  const [key, ...rest] = path.split(".");
  const copy = { ...job };
  if (rest.length) {
    const place = `${above}${key}`;
    const part = spelt(place, copy[key]);
    const section = part && typeof part === "object" && !Array.isArray(part) ? part : {};
    copy[key] = set(section, rest.join("."), value, `${place}.`);
    if (!Object.keys(copy[key]).length && !PURPOSES.includes(key)) delete copy[key];
  } else if (value === undefined || value === null || value === "") delete copy[key];
  else copy[key] = value;
  return copy;
}

/** The job with several values, one after the other. */
export function setAll(job, values) {
  return Object.entries(values).reduce((changed, [path, value]) => set(changed, path, value), job);
}

/** Changes of whole parts as changes of their heads, so that what else a part says stays: `train.recompute` -> `train.recompute.policy`. */
export function spread(change) {
  return Object.fromEntries(Object.entries(change).map(([path, value]) => [HEADS[path] && typeof value === "string" ? `${path}.${HEADS[path]}` : path, value]));
}

/** `train` or `serve`. */
export function purpose(job) {
  return job.serve ? "serve" : "train";
}

/** Whether two jobs are the same. */
export function same(a, b) {
  return JSON.stringify(a) === JSON.stringify(b);
}

/** What to call the model of a job. */
export function modelName(job) {
  if (typeof job.model === "string") return job.model;
  const config = job.model?.config;
  if (config) return config._name_or_path || `${config.model_type || "model"} (config.json)`;
  return job.model?.shape ? `${job.model.shape.family || "model"} (shape)` : "";
}

/** The value that the answer fills in for a key. */
export function resolved(answer, path) {
  return answer ? get(answer.job, path) : undefined;
}

/** Where the value of a key comes from, if the answer says so. */
export function originOf(answer, path) {
  const parent = path.split(".").slice(0, -1).join(".");
  return answer?.settings.find(({ key }) => key === path || key === parent)?.origin;
}

/** A part of a job, written out where one word stands for it. */
function spelt(path, part) {
  if (typeof part !== "string") return part;
  if (path === "serve.kv_dtype") return { k: part, v: part };
  return HEADS[path] ? { [HEADS[path]]: part } : part;
}

const PURPOSES = ["train", "serve"];
