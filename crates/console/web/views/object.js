// One object: what it is and how it is, its text, its events, what belongs to it, and the rights on it.
import { html, useEffect, useState } from "../vendor.js";
import { explains, get, query, remove, request, watch, why } from "../api.js";
import { apiVersion, changesLink, find, historyKind, objectLink, objectPath, ofKind } from "../kinds.js";
import { age, Causes, Dialog, Empty, Failure, Loading, note, now, Status, Tabs, useLoad } from "../ui.js";
import { verdictOf } from "../health.js";
import { Editor } from "../editor.js";
import { EventList } from "./events.js";
import { Logs, podsOf } from "./logs.js";
import { Terminal } from "./terminal.js";
import { Graph } from "./graph.js";
import { History } from "./history.js";
import { ObjectAccess } from "./access.js";
import { Clues } from "./problems.js";

// The tabs, and for which objects.
const TABS = [
  ["", "Overview", () => true],
  ["yaml", "YAML", () => true],
  ["events", "Events", () => true],
  ["logs", "Logs", (r) => podsOf(r) !== null],
  ["terminal", "Terminal", (r) => r.plural === "pods" && r.group === ""],
  ["graph", "Graph", () => true],
  ["history", "History", (r) => Boolean(historyKind()) && r.group !== "history.kaji.dev"],
  ["access", "Access", () => true],
];

export function ObjectView({ parts }) {
  const [group, plural, ns, name, tab] = [parts[0] === "core" ? "" : parts[0], parts[1], parts[2] === "-" ? "" : parts[2], parts[3], parts[4] ?? ""];
  const resource = find(group, plural);
  if (!resource) return html`<${Empty}>The cluster serves no ${plural}.</${Empty}>`;
  return html`<${One} resource=${resource} ns=${ns} name=${name} tab=${tab} />`;
}

/** The object, followed: `{object, error, gone}`. */
function useObject(resource, ns, name) {
  const [state, set] = useState({});
  const [round, next] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    const path = objectPath(resource, ns, name);
    (async () => {
      while (!stop.signal.aborted) {
        const object = await get(path, { signal: stop.signal });
        set({ object });
        if (!resource.verbs.includes("watch")) return;
        const collection = path.slice(0, path.lastIndexOf("/"));
        await watch(query(collection, { fieldSelector: `metadata.name=${name}` }), {
          resourceVersion: object.metadata.resourceVersion, signal: stop.signal,
          onEvent: (e) => set({ object: e.object, gone: e.type === "DELETED" }),
        });
      }
    })().catch((error) => { if (!stop.signal.aborted) set((old) => ({ ...old, error })); });
    return () => stop.abort(new DOMException("left", "AbortError"));
  }, [resource.group, resource.plural, ns, name, round]);
  return { ...state, again: () => next((n) => n + 1) };
}

function One({ resource, ns, name, tab }) {
  const { object, error, gone, again } = useObject(resource, ns, name);
  const [asking, ask] = useState("");
  const tabs = TABS.filter(([id, , fits]) => fits(resource) && (id !== "terminal" || resource.subresources.includes("exec")));
  const head = html`<div class="bar"><h1><span class="quiet">${resource.kind}</span> ${name}</h1>
      ${ns && html`<span class="quiet">in ${ns}</span>`}
      ${gone && html`<span class="status bad">deleted</span>`}
      ${object?.metadata.deletionTimestamp && !gone && html`<span class="status wait">being deleted</span>`}
      <span class="grow"></span>
      ${resource.subresources.includes("scale") && object && html`<button onClick=${() => ask("scale")}>Scale</button>`}
      ${resource.verbs.includes("delete") && html`<button class="danger" disabled=${!object || gone} onClick=${() => ask("delete")}>Delete</button>`}
    </div>
    <${Tabs} tabs=${tabs} at=${tab} link=${(id) => objectLink(resource, ns, name, id)} />`;
  if (error && !object) return html`<div class="page">${head}<${Failure} error=${error} again=${again} /></div>`;
  if (!object) return html`<div class="page">${head}<${Loading} /></div>`;
  const body = {
    "": () => html`<${Overview} resource=${resource} object=${object} />`,
    yaml: () => html`<${Editor} resource=${resource} object=${object} />`,
    events: () => html`<${EventList} ns=${ns} uid=${object.metadata.uid} />`,
    logs: () => html`<${Logs} of=${{ resource, object }} />`,
    terminal: () => html`<${Terminal} pod=${object} />`,
    graph: () => html`<${Graph} start=${{ resource, object }} />`,
    history: () => html`<${History} resource=${resource} object=${object} />`,
    access: () => html`<${ObjectAccess} resource=${resource} ns=${ns} name=${name} />`,
  }[tab] ?? (() => html`<${Empty}>There is no such part.</${Empty}>`);
  return html`<div class=${`page ${["yaml", "logs", "terminal", "graph", "history"].includes(tab) ? "fill" : ""}`}>${head}${body()}
    ${asking === "delete" && html`<${Delete} resource=${resource} ns=${ns} name=${name} uid=${object.metadata.uid} onClose=${() => ask("")} />`}
    ${asking === "scale" && html`<${Scale} resource=${resource} ns=${ns} name=${name} onClose=${() => ask("")} />`}
  </div>`;
}

function Delete({ resource, ns, name, uid, onClose }) {
  const [policy, setPolicy] = useState("Background");
  const [error, setError] = useState(null);
  const go = async (e) => {
    e.preventDefault();
    try {
      await remove(objectPath(resource, ns, name), { body: { kind: "DeleteOptions", apiVersion: "v1", propagationPolicy: policy, preconditions: { uid } } });
      note(`${resource.kind} ${name} is being deleted.`);
      onClose();
    } catch (failed) {
      setError(failed);
    }
  };
  return html`<${Dialog} title=${`Delete ${resource.kind} ${name}`} onClose=${onClose}><form class="body" onSubmit=${go}>
    ${error && html`<${Failure} error=${error} />`}
    <p>This cannot be undone.</p>
    <label>What it owns <select value=${policy} onChange=${(e) => setPolicy(e.currentTarget.value)}>
      <option value="Background">is deleted after it</option><option value="Foreground">is deleted before it</option><option value="Orphan">stays</option></select></label>
    <footer><button type="button" onClick=${onClose}>Cancel</button><button class="danger">Delete</button></footer>
  </form></${Dialog}>`;
}

function Scale({ resource, ns, name, onClose }) {
  const path = `${objectPath(resource, ns, name)}/scale`;
  const { value, error } = useLoad((signal) => get(path, { signal }), [path]);
  const [replicas, setReplicas] = useState(null);
  const [failed, setFailed] = useState(null);
  const go = async (e) => {
    e.preventDefault();
    try {
      await request(query(path, { fieldManager: "kaji-console" }), { method: "PATCH", type: "application/merge-patch+json", body: { spec: { replicas: Number(replicas) } } });
      onClose();
    } catch (wrong) {
      setFailed(wrong);
    }
  };
  return html`<${Dialog} title=${`Scale ${name}`} onClose=${onClose}><form class="body" onSubmit=${go}>
    ${(error || failed) && html`<${Failure} error=${error ?? failed} />`}
    <label>Replicas <input type="number" min="0" value=${replicas ?? value?.spec?.replicas ?? ""} onInput=${(e) => setReplicas(e.currentTarget.value)} /></label>
    <footer><button type="button" onClick=${onClose}>Cancel</button><button class="primary" disabled=${replicas === null || replicas === ""}>Scale</button></footer>
  </form></${Dialog}>`;
}

function Why({ resource, object }) {
  const meta = object.metadata;
  const verdict = verdictOf(resource, object);
  const wrong = verdict !== null || meta.deletionTimestamp;
  const [asked, ask] = useState(Boolean(wrong));
  if (!explains.value) {
    if (!wrong) return null;
    return html`<section class="card"><h2>Why</h2><p class="said">${verdict?.text}</p>
      <${Clues} found=${{ resource, name: meta.name, namespace: meta.namespace ?? "", uid: meta.uid }} /></section>`;
  }
  if (!asked) return html`<section class="card row"><h2>Why</h2><span class="quiet">It looks well.</span><button onClick=${() => ask(true)}>Ask all the same</button></section>`;
  return html`<section class="card"><h2>Why</h2><${Explained} resource=${resource} object=${object} /></section>`;
}

function Explained({ resource, object }) {
  const meta = object.metadata;
  const { value, error, loading } = useLoad((signal) => why(resource, meta.namespace ?? "", meta.name, { signal }), [meta.uid, JSON.stringify(object.status?.conditions ?? []), meta.deletionTimestamp]);
  if (error) return html`<p class="quiet">${error.message}</p>`;
  return value ? html`<${Causes} report=${value} />` : loading && html`<${Loading} what="Asking why" />`;
}

function Owner({ owner, ns }) {
  const resource = ofKind(owner.apiVersion, owner.kind);
  if (!resource) return html`${owner.kind} ${owner.name}`;
  return html`<a href=${objectLink(resource, resource.namespaced ? ns : "", owner.name)}>${owner.kind} ${owner.name}</a>`;
}

const Pairs = ({ of }) => html`<ul class="pairs">${Object.entries(of).map(([k, v]) => html`<li key=${k}><code>${k}</code>${v !== "" && html`<span>${String(v).slice(0, 300)}</span>`}</li>`)}</ul>`;

function Containers({ pod }) {
  const of = (name) => [...(pod.status?.containerStatuses ?? []), ...(pod.status?.initContainerStatuses ?? [])].find((s) => s.name === name);
  const stateOf = (s) => {
    const [state, detail] = Object.entries(s?.state ?? {})[0] ?? ["unknown", {}];
    return detail.reason ?? { running: "Running", waiting: "Waiting", terminated: "Terminated" }[state] ?? state;
  };
  const all = [...(pod.spec?.initContainers ?? []).map((c) => [c, "init"]), ...(pod.spec?.containers ?? []).map((c) => [c, ""])];
  return html`<section class="card"><h2>Containers</h2><div class="scroll" tabindex="0" role="region" aria-label="Containers"><table class="grid"><thead><tr><th>Name</th><th>Image</th><th>State</th><th>Ready</th><th>Restarts</th><th>Requests</th></tr></thead><tbody>
    ${all.map(([c, init]) => html`<tr key=${c.name}><td>${c.name} <span class="quiet">${init}</span></td><td><code>${c.image}</code></td><td><${Status} text=${stateOf(of(c.name))} /></td>
      <td>${of(c.name)?.ready ? "yes" : "no"}</td><td>${of(c.name)?.restartCount ?? 0}</td><td>${Object.entries(c.resources?.requests ?? {}).map(([k, v]) => `${k} ${v}`).join(", ")}</td></tr>`)}
  </tbody></table></div></section>`;
}

function Overview({ resource, object }) {
  const meta = object.metadata;
  const rows = [
    ["Created", html`${age(meta.creationTimestamp, now.value)} ago <span class="quiet">${meta.creationTimestamp}</span>`],
    meta.ownerReferences?.length && ["Owned by", meta.ownerReferences.map((o) => html`<${Owner} key=${o.uid} owner=${o} ns=${meta.namespace} /> `)],
    object.spec?.nodeName && ["Node", html`<a href=${objectLink(find("", "nodes"), "", object.spec.nodeName)}>${object.spec.nodeName}</a>`],
    resource.group === "" && resource.plural === "nodes" && ["Pods", html`<a href=${`#/k/core/pods?fields=${encodeURIComponent(`spec.nodeName=${meta.name}`)}`}>Pods of this node</a>`],
    resource.group === "" && resource.plural === "namespaces" && ["Changes", html`<a href=${changesLink({ ns: meta.name })}>Changes in this namespace</a>`],
    object.status?.podIP && ["Address", object.status.podIP],
    object.status?.phase && ["Phase", html`<${Status} text=${object.status.phase} />`],
    object.spec?.replicas !== undefined && ["Replicas", `${object.status?.readyReplicas ?? 0} ready of ${object.spec.replicas}`],
    object.spec?.clusterIP && ["Cluster IP", object.spec.clusterIP],
    meta.finalizers?.length && ["Finalizers", meta.finalizers.map((f) => html`<code key=${f}>${f}</code> `)],
    Object.keys(meta.labels ?? {}).length && ["Labels", html`<${Pairs} of=${meta.labels} />`],
    Object.keys(meta.annotations ?? {}).length && ["Annotations", html`<${Pairs} of=${meta.annotations} />`],
    ["API", html`<code>${apiVersion(resource)}</code>`],
  ].filter(Boolean);
  const conditions = object.status?.conditions ?? [];
  return html`<${Why} resource=${resource} object=${object} />
    <section class="card"><dl class="facts">${rows.map(([k, v]) => html`<div key=${k}><dt>${k}</dt><dd>${v}</dd></div>`)}</dl></section>
    ${resource.plural === "pods" && resource.group === "" && html`<${Containers} pod=${object} />`}
    ${conditions.length > 0 && html`<section class="card"><h2>Conditions</h2><div class="scroll" tabindex="0" role="region" aria-label="Conditions"><table class="grid"><thead><tr><th>Type</th><th>Status</th><th>Since</th><th>Reason</th><th>Message</th></tr></thead><tbody>
      ${conditions.map((c) => html`<tr key=${c.type}><td>${c.type}</td><td>${c.status}</td><td>${age(c.lastTransitionTime, now.value)}</td><td>${c.reason ?? ""}</td><td class="long">${c.message ?? ""}</td></tr>`)}
    </tbody></table></div></section>`}
    <section class="card"><h2>Events</h2><${EventList} ns=${meta.namespace ?? ""} uid=${meta.uid} short /></section>`;
}
