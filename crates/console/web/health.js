// What is wrong in a cluster, as far as the objects say it themselves: one finding an object, with the sentence that says what.
//
// A look reads lists, page by page and bounded; what could not be read, or was left out, is in `gaps`.
import { ApiError, get, getTable, listAll, query } from "./api.js";
import { collectionPath, find, isCustom, resources } from "./kinds.js";

const PAGE = 500;
const MOST_PODS = 60_000;
const MOST_FOUND = 500;
const MOST_CUSTOM = 40;
const SLOW = 60_000;

const condition = (object, type) => (object.status?.conditions ?? []).find((c) => c.type === type);
const said = (c) => [c?.reason, c?.message].filter(Boolean).join(": ");

function finding(resource, object, text, bad, since) {
  const meta = object.metadata;
  return {
    id: `${resource.group}/${resource.plural}/${meta.namespace ?? ""}/${meta.name}`, resource, name: meta.name, namespace: meta.namespace ?? "",
    text, bad, since: since ?? meta.creationTimestamp, uid: meta.uid, owner: (meta.ownerReferences ?? []).find((o) => o.controller),
  };
}

function leaving(resource, object) {
  const since = object.metadata.deletionTimestamp;
  if (!since || Date.now() - new Date(since) < SLOW) return null;
  const held = object.metadata.finalizers ?? [];
  return finding(resource, object, held.length ? `its deletion waits for ${held.join(", ")}` : "its deletion does not end", true, since);
}

/** Of a pod that is not as it was asked to be, at a time. */
export function podProblem(pod, at = Date.now()) {
  const statuses = [...(pod.status?.initContainerStatuses ?? []), ...(pod.status?.containerStatuses ?? [])];
  for (const status of statuses) {
    const waiting = status.state?.waiting;
    if (waiting && !["ContainerCreating", "PodInitializing"].includes(waiting.reason)) {
      const last = status.lastState?.terminated;
      return { text: `${status.name}: ${waiting.reason}${last ? `, last exit code ${last.exitCode}` : ""}`, bad: true };
    }
  }
  if (pod.status?.phase === "Failed") return { text: said(pod.status) || "it failed", bad: true };
  const scheduled = condition(pod, "PodScheduled");
  if (scheduled?.status === "False") return { text: said(scheduled), bad: true };
  const old = at - new Date(pod.status?.startTime ?? pod.metadata.creationTimestamp) > SLOW / 2;
  if (pod.status?.phase === "Pending" && old) return { text: "it is still pending", bad: false };
  const ready = condition(pod, "Ready");
  if (pod.status?.phase === "Running" && ready?.status === "False" && old) return { text: said(ready) || "it is not ready", bad: false };
  return null;
}

const behind = (want, have, what) => (have < want ? `${have} of ${want} ${what}` : null);
const RULES = {
  "/nodes": (o) => {
    const ready = condition(o, "Ready");
    if (ready && ready.status !== "True") return { text: said(ready) || "it is not ready", bad: true };
    const pressure = (o.status?.conditions ?? []).find((c) => c.type.endsWith("Pressure") && c.status === "True");
    if (pressure) return { text: said(pressure), bad: true };
    return o.spec?.unschedulable ? { text: "it is cordoned", bad: false } : null;
  },
  "/namespaces": (o) => (o.status?.phase === "Terminating" ? { text: said((o.status.conditions ?? []).find((c) => c.status === "True")) || "it is being deleted", bad: false } : null),
  "apps/deployments": (o) => {
    const failed = condition(o, "Progressing");
    const text = behind(o.spec?.replicas ?? 1, o.status?.availableReplicas ?? 0, "replicas are available");
    if (failed?.status === "False") return { text: said(failed), bad: true };
    const refused = condition(o, "ReplicaFailure");
    if (refused?.status === "True") return { text: said(refused), bad: true };
    return text && { text, bad: true };
  },
  "apps/statefulsets": (o) => {
    const text = behind(o.spec?.replicas ?? 1, o.status?.readyReplicas ?? 0, "replicas are ready");
    return text && { text, bad: true };
  },
  "apps/daemonsets": (o) => {
    const text = behind(o.status?.desiredNumberScheduled ?? 0, o.status?.numberReady ?? 0, "pods are ready");
    return text && { text, bad: true };
  },
  "batch/jobs": (o) => {
    const failed = condition(o, "Failed");
    return failed?.status === "True" ? { text: said(failed), bad: true } : null;
  },
  "/persistentvolumeclaims": (o) => (o.status?.phase && o.status.phase !== "Bound" ? { text: `it is ${o.status.phase}`, bad: o.status.phase === "Lost" } : null),
  "autoscaling/horizontalpodautoscalers": (o) => {
    const failed = (o.status?.conditions ?? []).find((c) => (c.type === "ScalingActive" || c.type === "AbleToScale") && c.status === "False");
    return failed ? { text: said(failed), bad: true } : null;
  },
  "certificates.k8s.io/certificatesigningrequests": (o) => {
    const conditions = o.status?.conditions ?? [];
    if (conditions.some((c) => c.type === "Denied" || c.type === "Failed")) return { text: said(conditions.find((c) => c.type !== "Approved")), bad: true };
    return !conditions.length ? { text: "it waits for approval", bad: false } : null;
  },
  "apiregistration.k8s.io/apiservices": (o) => {
    const available = condition(o, "Available");
    return available?.status === "False" ? { text: said(available), bad: true } : null;
  },
  "apiextensions.k8s.io/customresourcedefinitions": (o) => {
    const wrong = (o.status?.conditions ?? []).find((c) => (c.type === "Established" || c.type === "NamesAccepted") && c.status === "False");
    return wrong ? { text: said(wrong), bad: true } : null;
  },
};

// What operators say of their objects, by the conventions.
function conventional(o) {
  for (const type of ["Ready", "Available", "Synced", "Healthy", "Established", "Programmed", "Accepted"]) {
    const c = condition(o, type);
    if (c?.status === "False") return { text: said(c) || `it is not ${type}`, bad: true };
  }
  const bad = (o.status?.conditions ?? []).find((c) => ["Degraded", "Stalled", "Failed"].includes(c.type) && c.status === "True");
  return bad ? { text: said(bad), bad: true } : null;
}

async function ofKind(resource, rule, ns, signal, gaps, most = 2000) {
  const { items, more } = await listAll(collectionPath(resource, ns), { most, signal });
  if (more) gaps.push(`only the first ${most} ${resource.plural} were looked at`);
  const found = [];
  for (const object of items) {
    const stuck = leaving(resource, object);
    const verdict = stuck ?? rule(object);
    if (verdict) found.push(stuck ?? finding(resource, object, verdict.text, verdict.bad));
  }
  return found;
}

// Those that do not run are read whole; of those that run, the columns say which are not ready.
async function ofPods(ns, signal, gaps) {
  const resource = find("", "pods");
  if (!resource) return [];
  const path = collectionPath(resource, ns);
  const { items, more } = await listAll(query(path, { fieldSelector: "status.phase!=Running,status.phase!=Succeeded" }), { most: 2000, signal });
  if (more) gaps.push("only the first 2,000 pods that do not run were looked at");
  const unready = [];
  let next = "", seen = 0;
  do {
    const table = await getTable(query(path, { fieldSelector: "status.phase=Running", limit: PAGE, continue: next }), { signal });
    const ready = (table.columnDefinitions ?? []).findIndex((c) => c.name === "Ready");
    for (const row of table.rows ?? []) {
      const [have, want] = String(row.cells[ready] ?? "").split("/");
      if (have !== want || row.object?.metadata?.deletionTimestamp) unready.push(row.object.metadata);
    }
    seen += table.rows?.length ?? 0;
    next = table.metadata?.continue ?? "";
  } while (next && seen < MOST_PODS && unready.length < MOST_FOUND);
  if (next) gaps.push(`only the first ${seen.toLocaleString("en")} pods that run were looked at`);
  const read = await Promise.all(unready.slice(0, 100).map((meta) =>
    get(`${collectionPath(resource, meta.namespace)}/${meta.name}`, { signal }).catch(() => null)));
  const found = [];
  for (const pod of [...items, ...read.filter(Boolean)]) {
    const stuck = leaving(resource, pod);
    const verdict = stuck ?? podProblem(pod);
    if (verdict) found.push(stuck ?? finding(resource, pod, verdict.text, verdict.bad));
  }
  return found;
}

// Services that select, and have no address that is ready.
async function ofServices(ns, signal, gaps) {
  const [services, slices] = [find("", "services"), find("discovery.k8s.io", "endpointslices")];
  if (!services || !slices) return [];
  const [list, parts] = await Promise.all([
    listAll(collectionPath(services, ns), { most: 2000, signal }), listAll(collectionPath(slices, ns), { most: 4000, signal })]);
  if (parts.more) return gaps.push("services were not looked at: there are too many"), [];
  const ready = new Set();
  for (const slice of parts.items) {
    if ((slice.endpoints ?? []).some((e) => e.conditions?.ready !== false)) {
      ready.add(`${slice.metadata.namespace}/${slice.metadata.labels?.["kubernetes.io/service-name"]}`);
    }
  }
  return list.items
    .filter((s) => s.spec?.selector && s.spec.type !== "ExternalName" && !ready.has(`${s.metadata.namespace}/${s.metadata.name}`))
    .map((s) => finding(services, s, "it has no endpoints that are ready", false));
}

/** Looks at everything: `{found, gaps, at}`. */
export async function look(ns, signal) {
  const gaps = [];
  const tasks = [() => ofPods(ns, signal, gaps), () => ofServices(ns, signal, gaps)];
  for (const [id, rule] of Object.entries(RULES)) {
    const [group, plural] = id.split("/");
    const resource = find(group, plural);
    if (resource?.verbs.includes("list") && (resource.namespaced || !ns)) tasks.push(() => ofKind(resource, rule, ns, signal, gaps));
  }
  const custom = resources.value.filter((r) => isCustom(r) && r.verbs.includes("list") && (r.namespaced || !ns));
  if (custom.length > MOST_CUSTOM) gaps.push(`only ${MOST_CUSTOM} of ${custom.length} custom kinds were looked at`);
  for (const resource of custom.slice(0, MOST_CUSTOM)) tasks.push(() => ofKind(resource, conventional, ns, signal, gaps, 500));
  const found = [];
  // Four at a time.
  const queue = tasks.values();
  await Promise.all([1, 2, 3, 4].map(async () => {
    for (const task of queue) {
      try {
        found.push(...await task());
      } catch (error) {
        if (signal.aborted || !(error instanceof ApiError) || error.code === 0) throw error;
        if (error.code !== 404) gaps.push(error.message);
      }
    }
  }));
  found.sort((a, b) => b.bad - a.bad || (a.since < b.since ? 1 : -1));
  return { found, gaps, at: Date.now() };
}

/** What is wrong with an object, at a time: `{text, bad}` or null. */
export function verdictOf(resource, object, at = Date.now()) {
  if (resource.group === "" && resource.plural === "pods") return podProblem(object, at);
  return (RULES[`${resource.group}/${resource.plural}`] ?? conventional)(object);
}

/** Whether objects of a kind say how they are. */
export const hasVerdict = (resource) => (resource.group === "" && resource.plural === "pods") || `${resource.group}/${resource.plural}` in RULES || isCustom(resource);
