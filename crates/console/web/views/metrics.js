// Use of processors and memory, and the API server's requests, plotted while this is open.
import { html, styles, uplot, useEffect, useRef, useState } from "../vendor.js";
import { get, request } from "../api.js";
import { find, namespace, objectLink } from "../kinds.js";
import { stylesheet } from "../load.js";
import { Empty, Failure, Loading } from "../ui.js";

const EVERY = 10_000;
const MOST_POINTS = 360;
const MOST_LINES = 8;
const HUES = ["--accent", "--good", "--wait", "--line-4", "--line-5", "--bad", "--line-7", "--quiet"];

const POWERS = Array.from({ length: 50 }, (_, i) => 2 ** i);
const SCALE = { n: 1e-9, u: 1e-6, m: 1e-3, "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, Ki: 1024, Mi: 1024 ** 2, Gi: 1024 ** 3, Ti: 1024 ** 4 };

/** A quantity as a number. */
export function quantity(text) {
  const match = /^(-?[\d.]+(?:e-?\d+)?)([a-zA-Z]*)$/.exec(String(text ?? ""));
  return match ? Number(match[1]) * (SCALE[match[2]] ?? 1) : 0;
}

const cores = (v) => (v === null || v === undefined ? "" : v < 1 ? `${Math.round(v * 1000)}m` : v.toFixed(2));
export const bytes = (v) => {
  if (v === null || v === undefined) return "";
  const i = Math.max(0, Math.min(4, Math.floor(Math.log(Math.max(v, 1)) / Math.log(1024))));
  return `${(v / 1024 ** i).toFixed(i ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][i]}`;
};

// Kept while the page is open, so that another view and back loses nothing.
const history = new Map();

function record(chart, at, values) {
  const rows = history.get(chart) ?? [];
  if (rows.at(-1)?.at === at) return rows;
  const next = [...rows, { at, values }].slice(-MOST_POINTS);
  history.set(chart, next);
  return next;
}

/** The largest lines, and their points: `{names, data}`. */
function series(rows) {
  const sums = new Map();
  for (const row of rows) for (const [name, v] of Object.entries(row.values)) sums.set(name, (sums.get(name) ?? 0) + v);
  const names = [...sums].sort((a, b) => b[1] - a[1]).slice(0, MOST_LINES).map(([name]) => name);
  return { names, data: [rows.map((r) => r.at / 1000), ...names.map((n) => rows.map((r) => r.values[n] ?? null))] };
}

function Plot({ title, rows, format }) {
  const box = useRef(null), plot = useRef(null);
  const { names, data } = series(rows);
  const key = names.join("|");
  useEffect(() => {
    let gone = false, observer;
    const element = box.current;
    (async () => {
      const [{ default: Plotter }] = await Promise.all([uplot(), stylesheet(styles.uplot)]);
      if (gone) return;
      const of = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
      const axis = { stroke: of("--quiet"), grid: { stroke: of("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
      plot.current = new Plotter({
        width: element.clientWidth, height: 190, legend: { show: false }, cursor: { points: { size: 6 } },
        scales: { y: { range: (_, min, max) => [0, Math.max(max * 1.15, 1e-6)] } },
        axes: [{ ...axis, space: 90, values: (_, ticks) => ticks.map((t) => new Date(t * 1000).toLocaleTimeString("en-GB")) }, { ...axis, size: 64, ...(format === bytes && { incrs: POWERS }), values: (_, ticks) => ticks.map(format) }],
        series: [{}, ...names.map((label, i) => ({ label, stroke: of(HUES[i]), width: 1.75, points: { show: data[0].length < 3 } }))],
      }, data, element);
      observer = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: 190 }));
      observer.observe(element);
    })();
    return () => { gone = true; observer?.disconnect(); plot.current?.destroy(); plot.current = null; };
  }, [key]);
  useEffect(() => { plot.current?.setData(data); }, [rows]);
  const now = rows.at(-1)?.values ?? {};
  return html`<section class="card plot"><h2>${title}</h2><div ref=${box} aria-hidden="true"></div>
    <table class="grid compact"><caption class="hidden">${title}, now</caption><tbody>${names.map((n, i) => html`<tr key=${n}><th scope="row"><i class="swatch" style=${{ background: `var(${HUES[i]})` }}></i>${n}</th><td class="number">${format(now[n] ?? null)}</td></tr>`)}</tbody></table></section>`;
}

let before = null;

/** Requests a second by verb, from the server's own metrics. */
function rates(text, at) {
  const sums = {};
  for (const line of text.split("\n")) {
    const match = /^apiserver_request_total\{([^}]*)\}\s+([\d.e+]+)/.exec(line);
    if (!match) continue;
    const verb = /verb="([^"]*)"/.exec(match[1])?.[1] ?? "";
    sums[verb] = (sums[verb] ?? 0) + Number(match[2]);
  }
  const old = before;
  before = { at, sums };
  if (!old || at - old.at < 1000) return null;
  return Object.fromEntries(Object.entries(sums).map(([verb, n]) => [verb, Math.max(0, (n - (old.sums[verb] ?? 0)) / ((at - old.at) / 1000))]));
}

async function read(ns, signal) {
  const at = Date.now();
  const base = "/apis/metrics.k8s.io/v1beta1";
  const quiet = (p) => p.catch((error) => { if (signal.aborted) throw error; return { error }; });
  const [nodes, pods, server] = await Promise.all([
    quiet(get(`${base}/nodes`, { signal })), quiet(get(`${base}/${ns ? `namespaces/${ns}/` : ""}pods`, { signal })),
    quiet(request("/metrics", { text: true, accept: "text/plain", signal }))]);
  const errors = [nodes, pods].map((r) => r.error).filter(Boolean);
  const use = (list, of) => Object.fromEntries((list.items ?? []).map((i) => [i.metadata.name, of(i)]));
  const sum = (pod, what) => (pod.containers ?? []).reduce((n, c) => n + quantity(c.usage?.[what]), 0);
  const charts = {
    [`Processors by node`]: record("node-cpu", at, use(nodes, (n) => quantity(n.usage?.cpu))),
    [`Memory by node`]: record("node-memory", at, use(nodes, (n) => quantity(n.usage?.memory))),
    [`Processors by pod`]: record(`pod-cpu/${ns}`, at, use(pods, (p) => sum(p, "cpu"))),
    [`Memory by pod`]: record(`pod-memory/${ns}`, at, use(pods, (p) => sum(p, "memory"))),
  };
  const rate = typeof server === "string" ? rates(server, at) : null;
  if (rate) record("requests", at, rate);
  return { charts, requests: history.get("requests") ?? [], errors };
}

export function MetricsView() {
  const ns = namespace.value;
  const [state, set] = useState({});
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const run = () => read(ns, stop.signal).then((value) => set({ value }), (error) => { if (!stop.signal.aborted) set((old) => ({ ...old, error })); })
      .finally(() => { if (!stop.signal.aborted) timer = setTimeout(run, history.get("requests")?.length ? EVERY : 3000); });
    run();
    return () => { stop.abort(new DOMException("left", "AbortError")); clearTimeout(timer); };
  }, [ns]);
  const { value, error } = state;
  return html`<div class="page"><div class="bar"><h1>Metrics</h1><span class="quiet">read every ten seconds; the lines begin when this view is opened</span><span class="grow"></span>
      ${find("", "nodes") && html`<a href=${objectLink(find("", "nodes"), "", "").replace(/\/o\/.*/, "/k/core/nodes")}>Nodes</a>`}</div>
    ${error && html`<${Failure} error=${error} />`}
    ${!value && !error && html`<${Loading} />`}
    ${value?.errors.map((e) => html`<${Failure} key=${e.message} error=${e} />`)}
    <div class="plots">${value && Object.entries(value.charts).map(([title, rows]) => Object.keys(rows.at(-1)?.values ?? {}).length > 0 && html`<${Plot} key=${title} title=${title} rows=${rows} format=${title.startsWith("Memory") ? bytes : cores} />`)}
      ${value?.requests.length > 0 && html`<${Plot} title="Requests a second, by verb" rows=${value.requests} format=${(v) => (v === null ? "" : v.toFixed(v < 10 ? 1 : 0))} />`}</div>
    ${value && Object.values(value.charts).every((r) => !Object.keys(r.at(-1)?.values ?? {}).length) && !value.errors.length && html`<${Empty}>There are no metrics yet.</${Empty}>`}
  </div>`;
}
