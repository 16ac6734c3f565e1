// Modules that are loaded when a view needs them, and requests at the start of a page: tried again when the connection breaks.
const TRIES = 6;

/** Waits; fails as soon as `signal` aborts. */
export function pause(ms, signal) {
  return new Promise((done, fail) => {
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", () => { clearTimeout(timer); fail(signal.reason); }, { once: true });
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
