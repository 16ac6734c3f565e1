// The counting of what holds.
let passed = 0;
const failed = [];
export const counts = () => ({ passed, failed });

/** One thing that has to hold. */
export async function check(name, body) {
  if (process.env.ONLY && !name.includes(process.env.ONLY) && !name.startsWith("*")) return;
  const began = Date.now();
  try {
    await body();
    passed++;
    console.log(`ok ${name.replace("*", "")} (${Date.now() - began} ms)`);
  } catch (error) {
    failed.push(name);
    console.log(`FAIL ${name}: ${error.stack ?? error}`);
  }
}

export function equal(got, want, what = "") {
  const [a, b] = [JSON.stringify(got), JSON.stringify(want)];
  if (a !== b) throw new Error(`${what}: ${a} is not ${b}`);
}

export function holds(condition, what) {
  if (!condition) throw new Error(what);
}

export async function until(what, condition, seconds = 30) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() > end) throw new Error(`not within ${seconds} s: ${what}`);
    await new Promise((done) => setTimeout(done, 100));
  }
}
