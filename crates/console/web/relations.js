// Owners, dependents and references of objects: what depends on what in a namespace.
import { ApiError, listAll } from "./api.js";
import { collectionPath, find, isCustom, resources } from "./kinds.js";
import { verdictOf } from "./health.js";
import { selectorText } from "./views/logs.js";

const READ = ["apps/deployments", "apps/replicasets", "apps/statefulsets", "apps/daemonsets", "batch/jobs", "batch/cronjobs", "/pods",
  "/services", "networking.k8s.io/ingresses", "/configmaps", "/secrets", "/persistentvolumeclaims", "/serviceaccounts",
  "autoscaling/horizontalpodautoscalers", "policy/poddisruptionbudgets"];
const MOST = 500;
const MOST_CUSTOM = 25;

export const idOf = (resource, ns, name) => `${resource.group}/${resource.plural}/${resource.namespaced ? ns : ""}/${name}`;

function unhealthy(resource, object) {
  if (object.metadata.deletionTimestamp) return "it is being deleted";
  return verdictOf(resource, object)?.text ?? "";
}

/** `{nodes: Map id → {id, resource, object, trouble}, edges: [{from, to, kind}], gaps}`; edges point from what needs to what is needed. */
export async function relations(ns, signal) {
  const gaps = [], nodes = new Map(), edges = [];
  const custom = resources.value.filter((r) => isCustom(r) && r.namespaced && r.verbs.includes("list")).slice(0, MOST_CUSTOM);
  const read = [...READ.map((id) => find(...id.split("/"))).filter(Boolean), ...custom];
  await Promise.all(read.map(async (resource) => {
    try {
      // Contents of secrets are not needed.
      const { items, more } = await listAll(collectionPath(resource, ns), { most: MOST, signal, metadata: resource.plural === "secrets" || resource.plural === "configmaps" });
      if (more) gaps.push(`only the first ${MOST} ${resource.plural} are shown`);
      for (const object of items) nodes.set(idOf(resource, ns, object.metadata.name), { id: idOf(resource, ns, object.metadata.name), resource, object, trouble: unhealthy(resource, object) });
    } catch (error) {
      if (signal.aborted || !(error instanceof ApiError)) throw error;
      gaps.push(error.message);
    }
  }));
  const byUid = new Map([...nodes.values()].map((n) => [n.object.metadata.uid, n]));
  const link = (from, group, plural, name, kind) => {
    const resource = find(group, plural);
    if (!resource || !name) return;
    const to = idOf(resource, ns, name);
    if (nodes.has(to)) edges.push({ from: from.id, to, kind });
    else if (resource.namespaced && read.includes(resource) && !gaps.length) {
      nodes.set(to, { id: to, resource, object: { metadata: { name, namespace: ns } }, trouble: "it is missing", missing: true });
      edges.push({ from: from.id, to, kind });
    }
  };
  const pods = [...nodes.values()].filter((n) => n.resource.plural === "pods");
  for (const node of [...nodes.values()]) {
    const o = node.object;
    for (const owner of o.metadata.ownerReferences ?? []) {
      const from = byUid.get(owner.uid);
      if (from) edges.push({ from: from.id, to: node.id, kind: "owns" });
    }
    if (node.resource.plural === "pods") podLinks(node, link);
    if (node.resource.plural === "services" && o.spec?.selector) {
      for (const pod of pods) if (Object.entries(o.spec.selector).every(([k, v]) => pod.object.metadata.labels?.[k] === v)) edges.push({ from: node.id, to: pod.id, kind: "selects" });
    }
    if (node.resource.plural === "poddisruptionbudgets" && o.spec?.selector?.matchLabels) {
      for (const pod of pods) if (selectorText(o.spec.selector) && Object.entries(o.spec.selector.matchLabels).every(([k, v]) => pod.object.metadata.labels?.[k] === v)) edges.push({ from: node.id, to: pod.id, kind: "guards" });
    }
    if (node.resource.plural === "ingresses") {
      for (const rule of o.spec?.rules ?? []) for (const path of rule.http?.paths ?? []) link(node, "", "services", path.backend?.service?.name, "routes to");
      for (const tls of o.spec?.tls ?? []) link(node, "", "secrets", tls.secretName, "uses");
    }
    if (node.resource.plural === "horizontalpodautoscalers") {
      const ref = o.spec?.scaleTargetRef;
      const target = ref && resources.value.find((r) => r.kind === ref.kind && (ref.apiVersion ?? "").startsWith(r.group));
      if (target) link(node, target.group, target.plural, ref.name, "scales");
    }
  }
  return { nodes, edges: unique(edges), gaps };
}

function podLinks(node, link) {
  const spec = node.object.spec ?? {};
  for (const v of spec.volumes ?? []) {
    if (!v.configMap?.optional) link(node, "", "configmaps", v.configMap?.name, "mounts");
    if (!v.secret?.optional) link(node, "", "secrets", v.secret?.secretName, "mounts");
    link(node, "", "persistentvolumeclaims", v.persistentVolumeClaim?.claimName, "mounts");
    for (const s of v.projected?.sources ?? []) {
      if (s.configMap && !s.configMap.optional && s.configMap.name !== "kube-root-ca.crt") link(node, "", "configmaps", s.configMap.name, "mounts");
      if (s.secret && !s.secret.optional) link(node, "", "secrets", s.secret.name, "mounts");
    }
  }
  for (const c of [...(spec.initContainers ?? []), ...(spec.containers ?? [])]) {
    for (const e of c.envFrom ?? []) {
      if (!e.configMapRef?.optional) link(node, "", "configmaps", e.configMapRef?.name, "reads");
      if (!e.secretRef?.optional) link(node, "", "secrets", e.secretRef?.name, "reads");
    }
    for (const e of c.env ?? []) {
      if (!e.valueFrom?.configMapKeyRef?.optional) link(node, "", "configmaps", e.valueFrom?.configMapKeyRef?.name, "reads");
      if (!e.valueFrom?.secretKeyRef?.optional) link(node, "", "secrets", e.valueFrom?.secretKeyRef?.name, "reads");
    }
  }
  for (const s of spec.imagePullSecrets ?? []) link(node, "", "secrets", s.name, "pulls with");
  if (spec.serviceAccountName && spec.serviceAccountName !== "default") link(node, "", "serviceaccounts", spec.serviceAccountName, "runs as");
}

function unique(edges) {
  const seen = new Map();
  for (const e of edges) seen.set(`${e.from}>${e.to}>${e.kind}`, e);
  return [...seen.values()];
}

/** What is connected to an object, whatever the direction; shared things do not lead on. */
export function around(all, id, most = 300) {
  const near = new Map();
  for (const e of all.edges) {
    (near.get(e.from) ?? near.set(e.from, []).get(e.from)).push(e.to);
    (near.get(e.to) ?? near.set(e.to, []).get(e.to)).push(e.from);
  }
  const seen = new Set([id]), queue = [id];
  while (queue.length && seen.size < most) {
    const at = queue.shift();
    const node = all.nodes.get(at);
    const shared = at !== id && ["configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims"].includes(node?.resource.plural);
    if (shared) continue;
    for (const next of near.get(at) ?? []) if (!seen.has(next)) { seen.add(next); queue.push(next); }
  }
  return { nodes: new Map([...all.nodes].filter(([k]) => seen.has(k))), edges: all.edges.filter((e) => seen.has(e.from) && seen.has(e.to)), gaps: all.gaps };
}

/**
 * What is healthy and alike becomes one node: objects of a kind with the same neighbours, old generations, and what nothing is
 * connected to is left out.
 */
export function collapse(all, keep) {
  const connected = new Set(all.edges.flatMap((e) => [e.from, e.to]));
  const groups = new Map(), name = new Map();
  for (const node of all.nodes.values()) {
    if (!connected.has(node.id) && !node.trouble && node.id !== keep) continue;
    const near = all.edges.filter((e) => e.from === node.id || e.to === node.id).map((e) => (e.from === node.id ? `>${e.to}` : `<${e.from}`)).sort().join();
    const old = node.resource.plural === "replicasets" && node.object.spec?.replicas === 0;
    if (old && node.id !== keep) continue;
    const key = node.trouble || node.id === keep ? node.id : `${node.resource.group}/${node.resource.plural}|${near}`;
    (groups.get(key) ?? groups.set(key, []).get(key)).push(node);
  }
  const nodes = new Map();
  for (const [key, members] of groups) {
    const one = members.length === 1 ? members[0] : { id: key, resource: members[0].resource, object: members[0].object, trouble: "", members };
    nodes.set(one.id, one);
    for (const m of members) name.set(m.id, one.id);
  }
  const edges = unique(all.edges.filter((e) => name.has(e.from) && name.has(e.to)).map((e) => ({ ...e, from: name.get(e.from), to: name.get(e.to) })));
  return { nodes, edges, gaps: all.gaps };
}
