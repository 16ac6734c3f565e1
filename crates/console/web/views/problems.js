// What is wrong, first: unhealthy objects, each with its why; refused writes; and what could not be looked at.
import { html, signal, useEffect, useState } from "../vendor.js";
import { explains, get, listAll, why } from "../api.js";
import { collectionPath, find, namespace, objectLink } from "../kinds.js";
import { look } from "../health.js";
import { session } from "../session.js";
import { age, Causes, Empty, Failure, Loading, now, useLoad } from "../ui.js";

const EVERY = 15_000;
const SHOWN = 200;
// Explanations that are made without being asked for, two at a time.
const EXPLAINED = 12;

const answers = signal(new Map());
let waiting = [], busy = 0;

// Another user may not see what was explained to this one.
session.subscribe(() => {
  answers.value = new Map();
  waiting = [];
});

function keep(id, value) {
  const next = new Map(answers.value);
  next.set(id, value);
  while (next.size > 400) next.delete(next.keys().next().value);
  answers.value = next;
}

/** Asks for an explanation, unless it was asked for already. */
function explain(found) {
  const id = `${found.id}/${found.text}`;
  if (!explains.value || answers.value.has(id) || waiting.some((w) => w[0] === id)) return;
  waiting.push([id, found]);
  pump();
}

function pump() {
  while (busy < 2 && waiting.length) {
    const [id, found] = waiting.shift();
    const asked = session.value;
    const answered = (value) => { if (session.value === asked) keep(id, value); };
    busy++;
    why(found.resource, found.namespace, found.name)
      .then((report) => answered({ report }), (error) => answered({ error }))
      .finally(() => { busy--; pump(); });
  }
}

async function clues(found) {
  const events = await get(`/api/v1/${found.namespace ? `namespaces/${found.namespace}/` : ""}events?limit=100&fieldSelector=involvedObject.uid%3D${found.uid}`);
  return (events.items ?? []).sort((a, b) => (last(a) < last(b) ? 1 : -1)).slice(0, 6);
}

export const last = (e) => e.series?.lastObservedTime ?? e.lastTimestamp ?? e.eventTime ?? e.metadata.creationTimestamp;

/** Where there are no explanations: the newest events, and the command that explains. */
export function Clues({ found }) {
  const { value, error, loading } = useLoad(() => clues(found), [found.uid]);
  const kind = found.resource.group ? `${found.resource.plural}.${found.resource.group}` : found.resource.plural;
  return html`<div class="causes">
    ${loading && html`<${Loading} what="Reading events" />`}
    ${error && html`<p class="quiet">${error.message}</p>`}
    ${value && html`<ul>${value.map((e) => html`<li key=${e.metadata.uid}><span class=${`certainty ${e.type === "Warning" ? "nearest" : ""}`}>${age(last(e), now.value)}</span><span>${e.reason}: ${e.message}</span></li>`)}</ul>`}
    <p class="quiet">The whole chain: <code>kaji why ${kind}/${found.name}${found.namespace && ` -n ${found.namespace}`}</code></p>
  </div>`;
}

function Answer({ found }) {
  const answer = answers.value.get(`${found.id}/${found.text}`);
  if (!explains.value) return html`<${Clues} found=${found} />`;
  if (!answer) return html`<${Loading} what="Asking why" />`;
  if (answer.error) return html`<p class="quiet">${answer.error.message}</p>`;
  return html`<${Causes} report=${answer.report} />`;
}

function Row({ found, more, open, toggle }) {
  const answer = answers.value.get(`${found.id}/${found.text}`)?.report?.causes?.[0];
  return html`<li class=${`problem ${found.bad ? "bad" : "wait"}`}>
    <button class="plain fold" aria-expanded=${open} aria-label=${`Why: ${found.resource.kind} ${found.name}`} onClick=${toggle}><span class="mark" aria-hidden="true"></span></button>
    <div class="what">
      <p><span class="kind">${found.resource.kind}</span> <a href=${objectLink(found.resource, found.namespace, found.name)}>${found.name}</a>
        ${found.namespace && html` <span class="quiet">in ${found.namespace}</span>`}<span class="since quiet">${age(found.since, now.value)}</span></p>
      <p class="said">${answer && !open ? answer.summary : found.text}</p>
      ${more > 0 && html`<p class="quiet">and ${more} more of ${found.owner.kind} ${found.owner.name} for the same reason</p>`}
      ${open && html`<${Answer} found=${found} />`}
    </div>
  </li>`;
}

function refusals(ns) {
  return async (signal) => {
    const resource = find("kaji.dev", "refusals");
    if (!resource) return [];
    const { items } = await listAll(collectionPath(resource, resource.namespaced ? ns : ""), { most: 200, signal });
    return items.sort((a, b) => (a.lastTimestamp < b.lastTimestamp ? 1 : -1)).slice(0, 30);
  };
}

export function Refusals() {
  const { value } = useLoad(refusals(namespace.value), [namespace.value]);
  if (!value?.length) return null;
  return html`<section class="card"><h2>Refused writes</h2>
    <ul class="lines">${value.map((r) => {
      const of = r.object ?? {};
      return html`<li key=${r.metadata.name}><span class="quiet">${age(r.lastTimestamp, now.value)}</span>
        <span><b>${r.verb} ${of.resource}${of.name && `/${of.name}`}</b>${of.namespace && html` <span class="quiet">in ${of.namespace}</span>`} by ${r.user}${r.count > 1 && `, ${r.count} times`}: ${r.message}</span></li>`;
    })}</ul></section>`;
}

// Pods of a workload that is in the list are below it.
function grouped(found) {
  const groups = new Map();
  for (const one of found) {
    const key = one.owner ? `${one.namespace}/${one.owner.kind}/${one.owner.name}/${one.text}` : one.id;
    if (groups.has(key)) groups.get(key).push(one);
    else groups.set(key, [one]);
  }
  return [...groups.values()];
}

export function ProblemsView() {
  const [state, set] = useState({ loading: true });
  const [open, setOpen] = useState(new Set());
  const [round, next] = useState(0);
  const ns = namespace.value;
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const run = async () => {
      const began = Date.now();
      try {
        const value = await look(ns, stop.signal);
        if (!stop.signal.aborted) set({ value });
      } catch (error) {
        if (!stop.signal.aborted) set((old) => ({ ...old, error, loading: false }));
      }
      const again = () => (document.visibilityState === "visible" ? run() : (timer = setTimeout(again, 2000)));
      // A cluster that takes long to look at is looked at more rarely.
      if (!stop.signal.aborted) timer = setTimeout(again, Math.max(EVERY, 8 * (Date.now() - began)));
    };
    set({ loading: true });
    run();
    return () => { stop.abort(); clearTimeout(timer); };
  }, [ns, round]);
  const groups = grouped(state.value?.found ?? []);
  useEffect(() => { groups.slice(0, EXPLAINED).forEach((g) => explain(g[0])); }, [state.value]);
  const toggle = (found) => {
    explain(found);
    setOpen((old) => { const copy = new Set(old); if (!copy.delete(found.id)) copy.add(found.id); return copy; });
  };
  const { value, error, loading } = state;
  const bad = value?.found.filter((f) => f.bad).length ?? 0;
  return html`<div class="page">
    <div class="bar"><h1>Problems</h1>
      ${value && html`<span class="count" role="status">${value.found.length === 0 ? "" : `${bad} wrong, ${value.found.length - bad} waiting`}</span>
        <span class="quiet">looked ${age(value.at, now.value)} ago</span>`}
      <span class="grow"></span><a href="#/changes">What changed</a><button onClick=${() => next((n) => n + 1)}>Look again</button></div>
    ${error && html`<${Failure} error=${error} again=${() => next((n) => n + 1)} />`}
    ${loading && html`<${Loading} what="Looking at everything" />`}
    ${value && groups.length === 0 && html`<section class="well"><p class="big">Nothing is wrong</p><p class="quiet">${ns ? `in ${ns}` : "in any namespace"} that you may read.</p></section>`}
    ${groups.length > 0 && html`<ul class="problems">${groups.slice(0, SHOWN).map((group) => html`<${Row} key=${group[0].id} found=${group[0]} more=${group.length - 1} open=${open.has(group[0].id)} toggle=${() => toggle(group[0])} />`)}</ul>`}
    ${groups.length > SHOWN && html`<p class="quiet">And ${groups.length - SHOWN} more.</p>`}
    <${Refusals} />
    ${value?.gaps.length > 0 && html`<section class="card"><h2>Not looked at</h2><ul class="lines">${value.gaps.map((g) => html`<li key=${g}><span class="quiet">${g}</span></li>`)}</ul></section>`}
  </div>`;
}
