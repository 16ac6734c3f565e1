// Logs of many pods together, in the order of their times.
//
// Each container is asked again for what came since its last line, and not followed by a connection of its own: browsers keep six to a
// plain-HTTP server, and a question that is asked again survives a broken connection.
import { html, useEffect, useMemo, useRef, useState } from "../vendor.js";
import { listAll, query, request } from "../api.js";
import { pause } from "../load.js";
import { collectionPath, find, namespace, namespaces, objectPath } from "../kinds.js";
import { Empty, Failure } from "../ui.js";

const EVERY = 2000;
const MOST_CONTAINERS = 30;
const MOST_LINES = 4000;
const SHOWN = 1500;

/** The selector of a resource's pods: a function of the object; null if the kind has none. */
export function podsOf(resource) {
  const id = `${resource.group}/${resource.plural}`;
  if (id === "/pods") return (o) => ({ pod: o });
  if (["apps/deployments", "apps/replicasets", "apps/statefulsets", "apps/daemonsets", "batch/jobs"].includes(id)) return (o) => ({ selector: selectorText(o.spec?.selector) });
  if (id === "/services" || id === "/replicationcontrollers") {
    return (o) => ({ selector: Object.entries(o.spec?.selector ?? {}).map(([k, v]) => `${k}=${v}`).join(",") });
  }
  return null;
}

export function selectorText(selector) {
  const parts = Object.entries(selector?.matchLabels ?? {}).map(([k, v]) => `${k}=${v}`);
  for (const e of selector?.matchExpressions ?? []) {
    const values = (e.values ?? []).join(",");
    parts.push({ In: `${e.key} in (${values})`, NotIn: `${e.key} notin (${values})`, Exists: e.key, DoesNotExist: `!${e.key}` }[e.operator]);
  }
  return parts.join(",");
}

/** One container's lines. */
class Source {
  constructor(pod, container, tail) {
    Object.assign(this, { pod, container, tail, last: "", error: null, begun: false });
    this.path = `${objectPath(find("", "pods"), pod.metadata.namespace, pod.metadata.name)}/log`;
  }

  async read(previous, signal) {
    const since = this.last ? { sinceTime: `${this.last.slice(0, 19)}Z` } : { tailLines: this.tail };
    const text = await request(query(this.path, { container: this.container, timestamps: true, previous: previous || undefined, limitBytes: 2_000_000, ...since }), { text: true, accept: "*/*", signal });
    const lines = [];
    for (const line of text.split("\n")) {
      const at = line.indexOf(" ");
      const time = at > 0 ? line.slice(0, at) : "";
      if (!time || time <= this.last) continue;
      lines.push({ time, text: line.slice(at + 1), source: this });
    }
    if (lines.length) this.last = lines.at(-1).time;
    return lines;
  }
}

async function sourcesOf({ ns, selector, pod }, tail, signal) {
  const pods = pod ? [pod] : (await listAll(query(collectionPath(find("", "pods"), ns), { labelSelector: selector }), { most: 200, signal })).items;
  const all = pods.flatMap((p) => [...(p.spec.initContainers ?? []), ...p.spec.containers].map((c) => new Source(p, c.name, tail)));
  return { sources: all.slice(0, MOST_CONTAINERS), more: Math.max(0, all.length - MOST_CONTAINERS) };
}

export function Logs({ of, ns, selector }) {
  const target = of ? { ns: of.object.metadata.namespace, ...podsOf(of.resource)(of.object) } : { ns, selector };
  const key = JSON.stringify([target.ns, target.selector, target.pod?.metadata.uid]);
  const [lines, setLines] = useState([]);
  const [info, setInfo] = useState({ sources: [], more: 0 });
  const [error, setError] = useState(null);
  const [paused, setPaused] = useState(false);
  const [filter, setFilter] = useState("");
  const [previous, setPrevious] = useState(false);
  const [times, setTimes] = useState(false);
  const [hidden, hide] = useState(new Set());
  const box = useRef(null), stays = useRef(true), still = useRef(false);
  still.current = paused;
  useEffect(() => {
    const stop = new AbortController();
    const signal = stop.signal;
    setLines([]);
    setError(null);
    (async () => {
      let known = await sourcesOf(target, target.pod ? 500 : 100, signal), round = 0;
      setInfo(known);
      while (!signal.aborted) {
        if (!still.current) {
          // New pods are found now and then.
          if (!target.pod && ++round % 5 === 0) {
            const next = await sourcesOf(target, 100, signal);
            const old = new Map(known.sources.map((s) => [s.path + s.container, s]));
            known = { ...next, sources: next.sources.map((s) => old.get(s.path + s.container) ?? s) };
            setInfo(known);
          }
          const parts = await Promise.all(known.sources.map((s) => s.read(previous, signal).then((l) => { s.error = null; return l; }, (e) => { s.error = e; return []; })));
          const fresh = parts.flat().sort((a, b) => (a.time < b.time ? -1 : 1));
          if (fresh.length) setLines((old) => [...old, ...fresh].slice(-MOST_LINES));
          if (previous) return;
        }
        await pause(EVERY, signal);
      }
    })().catch((e) => { if (!signal.aborted) setError(e); });
    return () => stop.abort(new DOMException("left", "AbortError"));
  }, [key, previous]);
  useEffect(() => { if (stays.current && box.current) box.current.scrollTop = box.current.scrollHeight; }, [lines, filter]);
  const pattern = useMemo(() => {
    if (!filter) return null;
    try { return new RegExp(filter, "i"); } catch { return new RegExp(filter.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i"); }
  }, [filter]);
  const names = [...new Set(info.sources.map((s) => s.pod.metadata.name))];
  const several = info.sources.length > 1;
  const shown = lines.filter((l) => (!pattern || pattern.test(l.text)) && !hidden.has(l.source.pod.metadata.name)).slice(-SHOWN);
  const failed = info.sources.filter((s) => s.error);
  const color = (name) => `c${names.indexOf(name) % 8}`;
  return html`<div class="bar">
      <input type="search" data-filter class="filter" aria-label="Filter lines" placeholder="Filter, or a pattern" value=${filter} onInput=${(e) => setFilter(e.currentTarget.value)} />
      <button aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Go on" : "Pause"}</button>
      <label class="check"><input type="checkbox" checked=${times} onChange=${(e) => setTimes(e.currentTarget.checked)} />Times</label>
      <label class="check"><input type="checkbox" checked=${previous} onChange=${(e) => setPrevious(e.currentTarget.checked)} />Before the last restart</label>
      <span class="count" role="status">${info.sources.length} containers of ${names.length} pods, ${shown.length} lines${info.more ? `; ${info.more} containers are left out` : ""}</span>
    </div>
    ${names.length > 1 && html`<div class="chips">${names.map((n) => html`<button key=${n} class=${`chip ${color(n)}`} aria-pressed=${!hidden.has(n)}
      onClick=${() => hide((old) => { const next = new Set(old); if (!next.delete(n)) next.add(n); return next; })}>${n}</button>`)}</div>`}
    ${error && html`<${Failure} error=${error} />`}
    ${failed.length > 0 && html`<p class="quiet">${failed[0].container} of ${failed[0].pod.metadata.name}: ${failed[0].error.message}${failed.length > 1 ? ` (and ${failed.length - 1} more)` : ""}</p>`}
    ${info.sources.length === 0 && !error && html`<${Empty}>No pods match.</${Empty}>`}
    <div class="log" ref=${box} tabindex="0" role="log" aria-live="off" aria-label="Log lines" onScroll=${(e) => { const b = e.currentTarget; stays.current = b.scrollTop + b.clientHeight > b.scrollHeight - 40; }}>
      ${shown.map((l) => html`<div key=${l.time + l.source.path + l.source.container}>${several && html`<span class=${`from ${color(l.source.pod.metadata.name)}`}>${l.source.pod.metadata.name}</span>`}${times && html`<span class="time">${l.time.slice(11, 23)}</span>`}<span>${l.text}</span></div>`)}
    </div>`;
}

export function LogsView({ query: values }) {
  const [ns, setNs] = useState(values.get("ns") || namespace.value || "default");
  const [given, setGiven] = useState(values.get("labels") ?? "");
  const [selector, setSelector] = useState(given);
  return html`<div class="page fill">
    <div class="bar"><h1>Logs</h1>
      <label class="field">Namespace <select value=${ns} onChange=${(e) => setNs(e.currentTarget.value)}>${[...new Set([ns, ...namespaces.value])].map((n) => html`<option key=${n}>${n}</option>`)}</select></label>
      <form onSubmit=${(e) => { e.preventDefault(); setSelector(given); }}><label class="field">Pods with labels <input type="text" placeholder="app=web; all if empty" value=${given} onInput=${(e) => setGiven(e.currentTarget.value)} onBlur=${() => setSelector(given)} /></label></form></div>
    <${Logs} key=${`${ns}/${selector}`} ns=${ns} selector=${selector} />
  </div>`;
}
