// Differences of two texts, by lines: the longest common subsequence, between what is equal at both ends.
const MOST = 4_000_000;

/** `[{kind: " "|"+"|"-", text}]` */
export function lines(before, after) {
  const [a, b] = [before.split("\n"), after.split("\n")];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const [x, y] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
  return [
    ...a.slice(0, start).map((text) => ({ kind: " ", text })),
    ...middle(x, y),
    ...a.slice(a.length - end).map((text) => ({ kind: " ", text })),
  ];
}

function middle(x, y) {
  const whole = [...x.map((text) => ({ kind: "-", text })), ...y.map((text) => ({ kind: "+", text }))];
  if (!x.length || !y.length || x.length * y.length > MOST) return whole;
  const width = y.length + 1;
  const table = new Uint32Array((x.length + 1) * width);
  for (let i = x.length - 1; i >= 0; i--) {
    for (let j = y.length - 1; j >= 0; j--) {
      table[i * width + j] = x[i] === y[j] ? table[(i + 1) * width + j + 1] + 1 : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  const out = [];
  let [i, j] = [0, 0];
  while (i < x.length || j < y.length) {
    if (i < x.length && j < y.length && x[i] === y[j]) { out.push({ kind: " ", text: x[i] }); i++; j++; }
    else if (i < x.length && (j === y.length || table[(i + 1) * width + j] >= table[i * width + j + 1])) out.push({ kind: "-", text: x[i++] });
    else out.push({ kind: "+", text: y[j++] });
  }
  return out;
}

/** Only what differs, with some lines around; `null` stands for what is left out. */
export function around(all, context = 3) {
  const near = new Array(all.length).fill(false);
  all.forEach((line, i) => {
    if (line.kind === " ") return;
    for (let k = Math.max(0, i - context); k <= Math.min(all.length - 1, i + context); k++) near[k] = true;
  });
  const out = [];
  all.forEach((line, i) => {
    if (near[i]) out.push(line);
    else if (out.length === 0 || out[out.length - 1] !== null) out.push(null);
  });
  return out;
}

/** What was changed in an object: `{patch, removed}`; lists are whole. `removed` has paths. */
export function changes(before, after, path = []) {
  const patch = {}, removed = [];
  for (const key of Object.keys(after)) {
    const [x, y] = [before?.[key], after[key]];
    if (JSON.stringify(x) === JSON.stringify(y)) continue;
    if (isMap(x) && isMap(y)) {
      const inner = changes(x, y, [...path, key]);
      if (Object.keys(inner.patch).length) patch[key] = inner.patch;
      removed.push(...inner.removed);
    } else {
      patch[key] = y;
    }
  }
  for (const key of Object.keys(before ?? {})) {
    if (!(key in after)) removed.push([...path, key]);
  }
  return { patch, removed };
}

const isMap = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** The managers that own a field, by managedFields. */
export function ownersOf(object, path) {
  return (object.metadata.managedFields ?? []).filter((entry) => {
    let at = entry.fieldsV1 ?? {};
    for (const part of path) {
      at = at[`f:${part}`];
      if (at === undefined) return false;
    }
    return true;
  }).map((entry) => entry.manager);
}

/** Whether an object is a later version of another one, by resourceVersions, which are numbers that grow (KEP-5504). */
export function isNewer(object, other) {
  const [one, two] = [object, other].map((it) => it.metadata.resourceVersion ?? "");
  return one.length === two.length ? one > two : one.length > two.length;
}
