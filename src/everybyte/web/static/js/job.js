// A job is a plain object in the contract's form. These functions read it and make changed copies; none changes the job it is given.

/** The value at a key path such as `train.optimizer.name`; undefined if the job does not say. */
export function get(job, path) {
  return path.split(".").reduce((part, key) => (part && typeof part === "object" ? part[key] : undefined), job);
}

/** The job with one value; undefined, null and "" take the key away, and with it sections that are left empty. */
export function set(job, path, value) {
  const [key, ...rest] = path.split(".");
  const copy = { ...job };
  if (rest.length) {
    const section = copy[key] && typeof copy[key] === "object" && !Array.isArray(copy[key]) ? copy[key] : {};
    copy[key] = set(section, rest.join("."), value);
    if (!Object.keys(copy[key]).length && !PURPOSES.includes(key)) delete copy[key];
  } else if (value === undefined || value === null || value === "") delete copy[key];
  else copy[key] = value;
  return copy;
}

/** The job with several values, one after the other. */
export function setAll(job, values) {
  return Object.entries(values).reduce((changed, [path, value]) => set(changed, path, value), job);
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

/** The value that the answer fills in for a key. A part of the job that one word stands for is that word. */
export function resolved(answer, path) {
  if (!answer) return undefined;
  const value = get(answer.job, path);
  if (value !== undefined) return value;
  const above = get(answer.job, path.split(".").slice(0, -1).join("."));
  return typeof above === "string" ? above : undefined;
}

/** Where the value of a key comes from, if the answer says so. */
export function originOf(answer, path) {
  const parent = path.split(".").slice(0, -1).join(".");
  return answer?.settings.find(({ key }) => key === path || key === parent)?.origin;
}

const PURPOSES = ["train", "serve"];
