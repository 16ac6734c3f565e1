// Small parts of pages.
import { html, signal, useEffect, useRef, useState } from "./vendor.js";

/** Now, by the second: what shows an age follows it. */
export const now = signal(Date.now());
setInterval(() => { if (document.visibilityState === "visible") now.value = Date.now(); }, 1000);

/** `5m`, `3h20m`, `12d` as kubectl writes ages. */
export function age(time, at = now.value) {
  if (!time) return "";
  const s = Math.max(0, Math.floor((at - new Date(time).getTime()) / 1000));
  if (Number.isNaN(s)) return "";
  if (s < 120) return `${s}s`;
  const m = Math.floor(s / 60);
  if (m < 10) return s % 60 ? `${m}m${s % 60}s` : `${m}m`;
  if (m < 180) return `${m}m`;
  const h = Math.floor(m / 60);
  if (h < 8) return m % 60 ? `${h}h${m % 60}m` : `${h}h`;
  if (h < 48) return `${h}h`;
  const d = Math.floor(h / 24);
  if (d < 8) return h % 24 ? `${d}d${h % 24}h` : `${d}d`;
  return d < 730 ? `${d}d` : `${Math.floor(d / 365)}y`;
}

const GOOD = /^(Running|Ready|Active|Bound|Complete|Completed|Succeeded|True|Available|Healthy|Approved,Issued|Normal)$/;
const BAD = /(Error|Fail|BackOff|Invalid|Evicted|OOM|NotReady|Lost|CrashLoop|Unhealthy|Denied|Unschedulable)/;
const WAITING = /(Pending|Terminating|Creating|Init:|Unknown|Waiting|SchedulingDisabled|Progressing|Warning|<unknown>|<pending>)/;

/** `good`, `bad`, `wait` or nothing, of a cell's text. */
export function tone(text) {
  if (typeof text !== "string") return "";
  if (BAD.test(text)) return "bad";
  if (WAITING.test(text)) return "wait";
  return GOOD.test(text) ? "good" : "";
}

export function Status({ text }) {
  const of = tone(text);
  return of ? html`<span class=${`status ${of}`}>${text}</span>` : text;
}

const PATHS = {
  alert: "M8 1.5 15 14H1L8 1.5Zm0 4.5v4m0 2v.5",
  list: "M2 4h12M2 8h12M2 12h12",
  graph: "M4 3h3v3H4zM9.500 7h3v3h-3zM9.500 12h3v3h-3zM5.500 6v2.500h4M5.500 8.500v5h4",
  clock: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2Zm0 3v3.200l2 1.300",
  chart: "M2 2v12h12M4.500 11l3-4 2.500 2 3.500-5",
  key: "M10 2.500a3.500 3.500 0 1 1-2.400 6L3 13H1.500v-2l4.700-4.600A3.500 3.500 0 0 1 10 2.500Z",
  logs: "M3 2h10v12H3zM5.500 5h5M5.500 8h5M5.500 11h3",
  search: "M7 2.500a4.500 4.500 0 1 0 0 9 4.500 4.500 0 0 0 0-9Zm3.300 7.800L14 14",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6ZM8 1v2m0 10v2M1 8h2m10 0h2M3 3l1.500 1.500m7 7L13 13M13 3l-1.500 1.500m-7 7L3 13",
  plus: "M8 3v10M3 8h10",
  out: "M6 2H3v12h3m3-9 3 3-3 3m3-3H6",
  chevron: "m6 4 4 4-4 4",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.5"
    stroke-linejoin="round" stroke-linecap="round"><path d=${PATHS[name]} /></svg>`;
}

export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

export function Failure({ error, again }) {
  return html`<div class="failure" role="alert">
    <strong>${error.code === 403 ? "Not allowed" : "This could not be read"}</strong>
    <span>${error.message}</span>
    ${again && html`<button onClick=${again}>Try again</button>`}
  </div>`;
}

export const Loading = ({ what = "Loading" }) => html`<p class="loading" role="status"><span class="spinner"></span>${what}…</p>`;

/** Runs `load(signal)` when `keys` change: `{value, error, loading, again}`. */
export function useLoad(load, keys) {
  const [state, set] = useState({ loading: true });
  const [round, next] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    set((old) => ({ ...old, loading: true, error: null }));
    load(stop.signal).then(
      (value) => { if (!stop.signal.aborted) set({ value, loading: false }); },
      (error) => { if (!stop.signal.aborted) set((old) => ({ ...old, error, loading: false })); });
    return () => stop.abort(new DOMException("left", "AbortError"));
  }, [...keys, round]);
  return { ...state, again: () => next((n) => n + 1) };
}

/** A modal dialog: the browser keeps the focus in it, and Escape closes it. */
export function Dialog({ title, onClose, children, wide }) {
  const ref = useRef(null);
  useEffect(() => {
    const dialog = ref.current;
    const before = document.activeElement;
    if (!dialog.open) dialog.showModal();
    return () => { if (before instanceof HTMLElement) before.focus(); };
  }, []);
  return html`<dialog ref=${ref} class=${wide ? "wide" : ""} aria-label=${title}
    onCancel=${(e) => { e.preventDefault(); onClose(); }}
    onClick=${(e) => { if (e.target === ref.current) onClose(); }}>
    <header><h2>${title}</h2><button class="plain" aria-label="Close" onClick=${onClose}>✕</button></header>
    ${children}
  </dialog>`;
}

export const notes = signal([]);
let count = 0;

/** A short message at the corner. */
export function note(text, kind = "good") {
  const id = ++count;
  notes.value = [...notes.value.slice(-3), { id, text, kind }];
  setTimeout(() => { notes.value = notes.value.filter((n) => n.id !== id); }, 6000);
}

export function Notes() {
  return html`<div class="notes" role="status" aria-live="polite">
    ${notes.value.map((n) => html`<p key=${n.id} class=${n.kind}>${n.text}</p>`)}
  </div>`;
}

export function Tabs({ tabs, at, link }) {
  return html`<nav class="tabs" aria-label="Parts of the object">
    ${tabs.map(([id, text]) => html`<a key=${id} href=${link(id)} aria-current=${at === id ? "page" : undefined}>${text}</a>`)}
  </nav>`;
}

/** A statement list of `kaji why`. */
export function Causes({ report }) {
  if (!report.causes.length) return html`<p class="quiet">Nothing is wrong with it.</p>`;
  return html`<div class="causes">
    ${report.causes.map((cause, i) => html`<section key=${i}>
      <p class="cause"><b>${cause.summary}</b></p>
      <ul>
        ${cause.chain.map((s, j) => html`<li key=${j}><span class=${`certainty ${s.certainty}`}>${s.certainty}</span><span>${s.text}</span></li>`)}
        ${cause.nearest && html`<li><span class="certainty nearest">nearest</span><span>${cause.nearest}</span></li>`}
        ${cause.fixes.map((fix, j) => html`<li key=${`f${j}`}><span class="certainty fix">fix</span><span class="fixed">${fix}</span></li>`)}
      </ul>
    </section>`)}
    ${report.unknown.length > 0 && html`<p class="quiet">Not known, because it could not be read: ${report.unknown.join("; ")}</p>`}
  </div>`;
}
