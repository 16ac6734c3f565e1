// Fields of kinds, by the server's OpenAPI v3: for completion in the editor.
import { get } from "./api.js";

const documents = new Map();

function document(resource) {
  const path = resource.group ? `apis/${resource.group}/${resource.version}` : `api/${resource.version}`;
  if (!documents.has(path)) {
    documents.set(path, get(`/openapi/v3/${path}`).catch((error) => { documents.delete(path); throw error; }));
  }
  return documents.get(path);
}

function resolve(doc, schema) {
  for (let i = 0; i < 8 && schema; i++) {
    const ref = schema.$ref ?? schema.allOf?.[0]?.$ref;
    if (!ref) return schema;
    schema = { ...doc.components.schemas[ref.split("/").pop()] };
  }
  return schema;
}

/** A lookup of `path => {properties, enum, description}` for a kind. */
export async function schemaOf(resource) {
  const doc = await document(resource);
  const root = Object.values(doc.components?.schemas ?? {}).find((s) =>
    (s["x-kubernetes-group-version-kind"] ?? []).some((g) => g.group === resource.group && g.version === resource.version && g.kind === resource.kind));
  return (path) => {
    let at = resolve(doc, root);
    for (const part of path) {
      if (!at) return null;
      if (at.type === "array") at = resolve(doc, at.items);
      at = resolve(doc, at?.properties?.[part] ?? (typeof at?.additionalProperties === "object" ? at.additionalProperties : undefined));
    }
    if (at?.type === "array") at = resolve(doc, at.items);
    if (!at) return null;
    const fields = Object.entries(at.properties ?? {}).map(([name, schema]) => {
      const of = resolve(doc, schema);
      return { name, type: of?.type ?? "", detail: schema.description ?? of?.description ?? "", required: at.required?.includes(name) };
    });
    return { fields, values: at.enum ?? (at.type === "boolean" ? ["true", "false"] : []) };
  };
}

/** The path of keys above a position in YAML, by indentation: `{path, key, value}`. */
export function pathAt(text, position) {
  const before = text.slice(0, position).split("\n");
  const line = before.pop();
  const [, blank, dash, rest] = /^(\s*)((?:-\s+)*)(.*)$/.exec(line);
  let indent = blank.length + dash.length;
  const path = [];
  const colon = /^([\w./-]+):\s*(.*)$/.exec(rest);
  for (let i = before.length - 1; i >= 0 && indent > 0; i--) {
    const match = /^(\s*)((?:-\s+)*)(?:"([^"]+)"|([\w./-]+)):/.exec(before[i]);
    if (!match) continue;
    const at = match[1].length + match[2].length;
    // A list's items may stand at their key's own column.
    const within = at < indent && (match[1].length < indent) || (dash && at === blank.length && !match[2]);
    if (!within || at >= indent && !dash) continue;
    path.unshift(match[3] ?? match[4]);
    indent = match[2] ? match[1].length + match[2].length : at;
    if (match[2]) indent = at;
    if (at === 0) break;
  }
  return colon ? { path: [...path, colon[1]], word: colon[2], value: true } : { path, word: rest, value: false };
}
