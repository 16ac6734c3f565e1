// Requests to the API server: answers or an ApiError, reads tried again, watches that survive broken connections.
//
// Everything goes through the normal API with the user's token; nothing is kept that a second look would not show.
import { signal } from "./vendor.js";
import { pause } from "./load.js";
import { session, signOut } from "./session.js";

/** `online`, or since when nothing was answered. */
export const connection = signal({ online: true, since: 0 });

const TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json";
const METADATA_EVENTS = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json";
const TRIES = 5;
const PATIENCE = 45_000;
// Bookmarks come every minute; a watch that is silent for longer is broken.
const SILENCE = 100_000;

export class ApiError extends Error {
  constructor(status, path) {
    super(status.message || `${path}: ${status.code}`);
    this.code = status.code ?? 0;
    this.reason = status.reason ?? "";
    this.causes = status.details?.causes ?? [];
    this.status = status;
  }
}

const delay = (tries) => Math.min(15_000, 400 * 2 ** tries) * (0.6 + Math.random() * 0.4);

function answered() {
  if (!connection.value.online) connection.value = { online: true, since: 0 };
}

function broken() {
  if (connection.value.online) connection.value = { online: false, since: Date.now() };
}

async function send(path, { method = "GET", body, accept = "application/json", type, signal } = {}) {
  const headers = { Accept: accept };
  if (session.value?.token) headers.Authorization = `Bearer ${session.value.token}`;
  if (body !== undefined) headers["Content-Type"] = type ?? "application/json";
  const text = body === undefined || typeof body === "string" ? body : JSON.stringify(body);
  return fetch(path, { method, headers, body: text, signal, credentials: "omit", cache: "no-store" });
}

async function refusalOf(answer, path) {
  let status = { code: answer.status, message: `${path}: ${answer.status} ${answer.statusText}` };
  try {
    const text = await answer.text();
    if (text.startsWith("{")) status = { ...status, ...JSON.parse(text) };
    else if (text.trim()) status.message = text.trim().slice(0, 500);
  } catch {
    // What is known says enough.
  }
  if (answer.status === 401) signOut(status.message || "The token is not accepted.");
  return new ApiError(status, path);
}

/** One request; reads are tried again when the connection breaks or the server asks for it. */
export async function request(path, options = {}) {
  const reads = (options.method ?? "GET") === "GET";
  for (let tries = 0; ; tries++) {
    options.signal?.throwIfAborted();
    const limits = [AbortSignal.timeout(PATIENCE), options.signal].filter(Boolean);
    try {
      const answer = await send(path, { ...options, signal: AbortSignal.any(limits) });
      answered();
      if (answer.ok) return options.text ? await answer.text() : await answer.json();
      const again = reads && tries < TRIES && (answer.status === 429 || answer.status === 503 || answer.status === 502);
      if (!again) throw await refusalOf(answer, path);
      await pause(Number(answer.headers.get("Retry-After")) * 1000 || delay(tries), options.signal);
    } catch (error) {
      if (error instanceof ApiError || options.signal?.aborted) throw error;
      broken();
      if (!reads || tries >= TRIES) {
        throw new ApiError({ code: 0, message: "The server cannot be reached.", reason: "Unreachable" }, path);
      }
      await pause(delay(tries), options.signal);
    }
  }
}

export const get = (path, options) => request(path, options);
export const getTable = (path, options) => request(path, { ...options, accept: TABLE });
export const getMetadata = (path, options) => request(path, { ...options, accept: METADATA });
export const post = (path, body, options) => request(path, { ...options, method: "POST", body });
export const remove = (path, options) => request(path, { ...options, method: "DELETE" });

export function query(path, values) {
  const pairs = Object.entries(values).filter(([, v]) => v !== undefined && v !== null && v !== "");
  if (pairs.length === 0) return path;
  const text = pairs.map(([k, v]) => `${k}=${encodeURIComponent(v)}`).join("&");
  return path + (path.includes("?") ? "&" : "?") + text;
}

/** All pages of a list, at most `most` items: `{items, more, resourceVersion}`. */
export async function listAll(path, { most = 500, signal, metadata = false } = {}) {
  const items = [];
  let next = "", version = "";
  do {
    const page = await (metadata ? getMetadata : get)(
      query(path, { limit: Math.min(500, most - items.length), continue: next }), { signal });
    for (const item of page.items ?? []) items.push(item);
    next = page.metadata?.continue ?? "";
    version = page.metadata?.resourceVersion ?? "";
  } while (next && items.length < most);
  return { items, more: Boolean(next), resourceVersion: version };
}

/**
 * Watches from a resource version until `signal` aborts. Broken connections begin again where they ended. Resolves to `"expired"`
 * when the history before that is gone: the caller lists anew.
 */
export async function watch(path, { resourceVersion, table = false, onEvent, signal }) {
  let version = resourceVersion, tries = 0;
  while (!signal.aborted) {
    try {
      const outcome = await watchOnce(path, { version, accept: table ? TABLE : undefined }, signal, (event) => {
        tries = 0;
        version = versionOf(event) || version;
        if (event.type !== "BOOKMARK") onEvent(event);
      });
      if (outcome === "expired") return outcome;
    } catch (error) {
      if (signal.aborted) return "ended";
      if (error instanceof ApiError && error.code === 410) return "expired";
      if (error instanceof ApiError && error.code >= 400 && error.code < 500 && error.code !== 429) throw error;
      broken();
    }
    try {
      await pause(delay(tries++), signal);
    } catch {
      return "ended";
    }
  }
  return "ended";
}

/**
 * Changes since a resource version, as they come for `seconds`: resolves to the version to go on from, or to `"expired"` when the history
 * before that is gone. Unlike `watch` it holds no connection for long: many collections can be followed in turn.
 */
export async function changesSince(path, { resourceVersion, seconds, metadata = false, onEvent, signal }) {
  let version = resourceVersion;
  try {
    const outcome = await watchOnce(path, { version, seconds, accept: metadata ? METADATA_EVENTS : undefined }, signal, (event) => {
      version = versionOf(event) || version;
      if (event.type !== "BOOKMARK") onEvent(event);
    });
    return outcome === "expired" ? outcome : version;
  } catch (error) {
    if (error instanceof ApiError && error.code === 410) return "expired";
    if (error instanceof ApiError || signal.aborted) throw error;
    broken();
    throw new ApiError({ code: 0, message: "The server cannot be reached.", reason: "Unreachable" }, path);
  }
}

const versionOf = (event) => event.object?.metadata?.resourceVersion || event.object?.rows?.[0]?.object?.metadata?.resourceVersion;

async function watchOnce(path, { version, accept, seconds = 300 }, signal, onEvent) {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENCE);
  try {
    const url = query(path, { watch: 1, allowWatchBookmarks: true, resourceVersion: version, timeoutSeconds: seconds });
    const answer = await send(url, { accept, signal: AbortSignal.any([signal, silence.signal]) });
    if (!answer.ok) throw await refusalOf(answer, path);
    answered();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return "ended";
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE);
      answered();
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line) continue;
        const event = JSON.parse(line);
        if (event.type === "ERROR") {
          if (event.object?.code === 410) return "expired";
          throw new ApiError(event.object ?? {}, path);
        }
        onEvent(event);
      }
    }
  } finally {
    clearTimeout(timer);
  }
}

/** Whether what serves this page explains to this user: an API server of another make does not, nor to users without the right. */
export const explains = signal(false);

/** Finds that out: without a question the answer says which parameters there are. */
export async function findExplanations() {
  explains.value = false;
  const found = await get("/kaji/why").catch((error) => { if (!(error instanceof ApiError)) throw error; });
  explains.value = ["subject", "refusal"].every((name) => found?.parameters?.includes(name));
}

/** What `kaji why` says of an object. */
export function why(resource, namespace, name, options) {
  const kind = resource.group ? `${resource.plural}.${resource.group}` : resource.plural;
  return get(query("/kaji/why", { subject: `${kind}/${name}`, namespace }), options);
}

export const whyRefused = (text, options) => get(query("/kaji/why", { refusal: text }), options);
