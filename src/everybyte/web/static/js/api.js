// Talks with the server. A refusal of the job, a busy server and a lost connection all arrive as an ApiError that can be shown as it is.

export class ApiError extends Error {
  /** `path` is the key of the job that is wrong, or empty; `status` is 0 where the server cannot be reached; `needs` is how much of a file it wants. */
  constructor(path, message, status, needs = null) {
    super(message);
    this.path = path;
    this.status = status;
    this.needs = needs;
  }
}

/** The answer of GET `route`. Raises ApiError. */
export function ask(route) {
  return request(route, {});
}

/** The answer of POST `route` with a JSON body. Raises ApiError, or AbortError when `signal` says so. */
export function post(route, body, signal) {
  return request(route, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
}

async function request(route, options) {
  let response;
  try {
    response = await fetch(route, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("", "The server cannot be reached. Is `everybyte ui` still running?", 0);
  }
  const isJson = response.headers.get("Content-Type")?.includes("json");
  const content = await (isJson ? response.json() : response.text()).catch(() => null);
  if (response.ok) return content;
  const error = content?.error;
  throw new ApiError(error?.path ?? "", error?.message ?? `The server answered ${response.status}.`, response.status, error?.needs);
}

/** Runs one request at a time. While one runs, only the newest of those that come waits: a slider that is dragged is followed without a queue. */
export class Newest {
  #running = false;
  #next = null;

  /** Runs `work` now or after what runs; one that waits already is dropped. */
  run(work) {
    this.#next = work;
    if (!this.#running) this.#loop();
  }

  async #loop() {
    this.#running = true;
    while (this.#next) {
      const work = this.#next;
      this.#next = null;
      await work(() => this.#next !== null);
    }
    this.#running = false;
  }
}
