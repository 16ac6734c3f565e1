// Modules and stylesheets that are loaded when a view needs them, and requests at the start of a page: tried again when the connection breaks.
const TRIES = 6;

/** Waits; fails as soon as `signal` aborts. */
export function pause(ms, signal) {
  return new Promise((done, fail) => {
    if (signal?.aborted) return fail(signal.reason);
    const left = () => { clearTimeout(timer); fail(signal.reason); };
    const timer = setTimeout(() => { signal?.removeEventListener("abort", left); done(); }, ms);
    signal?.addEventListener("abort", left, { once: true });
  });
}

async function again(attempt) {
  for (let tries = 0; ; tries++) {
    try {
      return await attempt(tries);
    } catch (error) {
      if (tries >= TRIES) throw error;
      await pause(Math.min(5_000, 150 * 2 ** tries));
    }
  }
}

/** The module at an address. Browsers remember by its address that one has failed. */
export const load = (url) => again((tries) => import(tries ? `${url}?round=${tries}` : url));

/** An answer, whatever its status. */
export const fetchAgain = (path, options) => again(() => fetch(path, options));

const sheets = new Map();

/** Puts a stylesheet into the document, once; resolves when its rules apply. */
export function stylesheet(href) {
  if (!sheets.has(href)) {
    const applied = again(() => new Promise((done, fail) => {
      const link = Object.assign(document.createElement("link"), { rel: "stylesheet", href });
      link.addEventListener("load", done);
      link.addEventListener("error", () => { link.remove(); fail(new Error(`${href} could not be loaded`)); });
      document.head.append(link);
    }));
    applied.catch(() => sheets.delete(href));
    sheets.set(href, applied);
  }
  return sheets.get(href);
}
