// What the cluster serves: kinds by discovery, their paths, and the namespaces.
import { computed, signal } from "./vendor.js";
import { findExplanations, get, getMetadata, request, ApiError } from "./api.js";
import { session } from "./session.js";

const AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

/** Every resource: `{group, version, plural, kind, namespaced, verbs, categories, shortNames, subresources}`. */
export const resources = signal([]);
export const discoveryError = signal(null);
export const namespaces = signal([]);
/** The namespace that lists are of; "" for all. */
export const namespace = signal("");
/** `{username, groups}` */
export const user = signal(null);
/** `v1.37.0…` */
export const version = signal("");

const listed = computed(() => resources.value.filter((r) => r.verbs.includes("list")));
/** Kinds that can be listed, sorted by the order of the menu. */
export const kinds = computed(() => [...listed.value].sort((a, b) => a.kind.localeCompare(b.kind)));

/** Groups that are no part of Kubernetes itself. */
export function isCustom(resource) {
  return resource.group.includes(".") && !resource.group.endsWith(".k8s.io") && !/(^|\.)kaji\.dev$/.test(resource.group)
    || resource.group.endsWith("gateway.networking.k8s.io");
}

export async function discover() {
  const found = [];
  for (const root of ["/api", "/apis"]) {
    const document = await request(root, { accept: AGGREGATED });
    for (const group of document.items ?? []) {
      const name = group.metadata?.name ?? "";
      const preferred = new Set();
      for (const version of group.versions ?? []) {
        for (const r of version.resources ?? []) {
          if (preferred.has(r.resource)) continue;
          preferred.add(r.resource);
          found.push({
            group: name,
            version: version.version,
            plural: r.resource,
            singular: r.singularResource ?? "",
            kind: r.responseKind?.kind ?? r.resource,
            namespaced: r.scope === "Namespaced",
            verbs: r.verbs ?? [],
            categories: r.categories ?? [],
            shortNames: r.shortNames ?? [],
            subresources: (r.subresources ?? []).map((s) => s.subresource),
          });
        }
      }
    }
  }
  resources.value = found;
  discoveryError.value = null;
}

/** Reads what every view needs; refusals of parts are no failure. */
export async function start() {
  if (session.value?.namespace !== undefined && namespace.value === "") namespace.value = "";
  try {
    await discover();
  } catch (error) {
    discoveryError.value = error;
    throw error;
  }
  const quiet = (promise) => promise.catch((error) => { if (!(error instanceof ApiError)) throw error; });
  await Promise.all([
    quiet(refreshNamespaces()),
    quiet(get("/version").then((v) => { version.value = v.gitVersion; })),
    quiet(readUser()),
    findExplanations(),
  ]);
}

export async function refreshNamespaces() {
  const list = await getMetadata("/api/v1/namespaces?limit=1000");
  namespaces.value = (list.items ?? []).map((n) => n.metadata.name);
}

async function readUser() {
  const review = await request("/apis/authentication.k8s.io/v1/selfsubjectreviews", {
    method: "POST",
    body: { apiVersion: "authentication.k8s.io/v1", kind: "SelfSubjectReview" },
  });
  user.value = review.status?.userInfo ?? null;
}

const base = (r) => (r.group ? `/apis/${r.group}/${r.version}` : `/api/${r.version}`);

/** The path of a collection. */
export function collectionPath(r, ns) {
  return base(r) + (r.namespaced && ns ? `/namespaces/${encodeURIComponent(ns)}` : "") + `/${r.plural}`;
}

export const objectPath = (r, ns, name) => `${collectionPath(r, ns)}/${encodeURIComponent(name)}`;

export const find = (group, plural) => resources.value.find((r) => r.group === group && r.plural === plural);

/** The kind of the history of objects, where the server keeps one. */
export const historyKind = () => find("history.kaji.dev", "revisions");

/** The resource of an apiVersion and kind. */
export function ofKind(apiVersion, kind) {
  const group = apiVersion.includes("/") ? apiVersion.split("/")[0] : "";
  return resources.value.find((r) => r.group === group && r.kind === kind);
}

export const apiVersion = (r) => (r.group ? `${r.group}/${r.version}` : r.version);

const enc = encodeURIComponent;
export const kindLink = (r) => `#/k/${r.group || "core"}/${r.plural}`;
export const objectLink = (r, ns, name, tab) =>
  `#/o/${r.group || "core"}/${r.plural}/${enc(ns || "-")}/${enc(name)}` + (tab ? `/${tab}` : "");
/** The changes of all objects: in a namespace, of a kind. */
export const changesLink = ({ ns, kind } = {}) => {
  const pairs = [ns !== undefined && `ns=${enc(ns)}`, kind && `kind=${kind.group || "core"}/${kind.plural}`].filter(Boolean);
  return `#/changes${pairs.length ? `?${pairs.join("&")}` : ""}`;
};
