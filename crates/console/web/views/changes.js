// What changed in a namespace, or everywhere, and how it was at an earlier time: changes of objects as they come, with the request that
// made each, over a strip of time with a scrubber; beside them the objects that existed then, the unhealthy ones first.
import { html, useEffect, useMemo, useState } from "../vendor.js";
import { historyKind, namespace, objectLink } from "../kinds.js";
import { Journal } from "../journal.js";
import { BARS, barsOf, clock, Span, SPANS, Strip } from "../strip.js";
import { age, Empty, Failure, Icon, Loading, now } from "../ui.js";
import { VirtualTable } from "../virtual.js";

const TICK = 5000;
/** Unhealthy objects, and objects of the kind that is open, in the document. */
const LISTED = 200;

const idOf = (resource) => `${resource.group || "core"}/${resource.plural}`;

/** The journal of a namespace while this is open; `version` grows with what it knows. One that knows a longer time is kept. */
function useJournal(ns, span) {
  const [journal, set] = useState(null);
  const [round, next] = useState(0);
  const [known, know] = useState(span);
  if (span > known) know(span);
  useEffect(() => {
    const one = new Journal(ns, known);
    set(one);
    return () => one.close();
  }, [ns, known, round]);
  return { journal, version: journal?.version.value ?? 0, state: journal?.state.value ?? "reading", error: journal?.error.value ?? null, again: () => next((n) => n + 1) };
}

/** The window of time, and the moment in it: while none is chosen it is now, and the window moves; else it stands still. */
function useMoment() {
  const [span, setSpan] = useState(SPANS[1][0]);
  const [chosen, choose] = useState(null);
  const end = chosen ? chosen.end : Math.floor(now.value / TICK) * TICK + TICK;
  const start = end - span;
  const at = chosen ? Math.max(0, Math.min(BARS - 1, Math.round(((chosen.time - start) / span) * BARS))) : BARS;
  return {
    span, start, end, at, live: !chosen, time: chosen ? chosen.time : Infinity,
    choose: (time) => choose({ time, end }),
    scrub: (bar) => choose(bar >= BARS ? null : { time: start + (bar / BARS) * span, end }),
    toNow: () => choose(null),
    setSpan: (ms) => { setSpan(ms); choose(null); },
  };
}

function textOf({ track, entry }) {
  const of = track ? `${track.resource.kind} ${track.name} ${track.namespace}` : "";
  return `${of} ${entry.change} ${entry.user} ${entry.manager} ${entry.verb} ${entry.problem?.text ?? ""} ${entry.message ?? ""}`.toLowerCase();
}

const COLUMNS = [
  { name: "Object", width: "minmax(150px, 2fr)" },
  { name: "Namespace", width: "minmax(84px, .8fr)" },
  { name: "Time", width: "78px", title: "Enter, or a click, shows the state then" },
  { name: "Change", width: "74px" },
  { name: "User", width: "minmax(90px, 1.2fr)" },
  { name: "Manager", width: "minmax(84px, 1fr)" },
  { name: "Verb", width: "100px" },
  { name: "Health", width: "minmax(90px, 1.2fr)" },
];

function Cell({ change: { track, entry, turn }, column }) {
  switch (column.name) {
    case "Object": return track ? html`<span class="kind">${track.resource.kind}</span> ${track.name}` : html`<em>Revisions are missing</em>`;
    case "Namespace": return track?.namespace ?? "";
    case "Time": return html`<time datetime=${new Date(entry.time).toISOString()} title=${`${clock(entry.time, Infinity)}, ${age(entry.time, now.value)} ago`}>${clock(entry.time)}</time>`;
    case "Change": return entry.change;
    case "User": return html`<span title=${entry.user}>${entry.user}</span>`;
    case "Manager": return html`<span title=${entry.manager}>${entry.manager}</span>`;
    case "Verb": return [entry.verb, entry.subresource].filter(Boolean).join(" ");
    default:
      if (entry.message) return html`<span class="quiet" title=${entry.message}>${entry.message}</span>`;
      if (turn === "good") return html`<span class="status">healthy again</span>`;
      return turn === "bad" && html`<span class=${`status ${entry.problem.bad ? "bad" : "wait"}`} title=${entry.problem.text}>${entry.problem.text}</span>`;
  }
}

function Changes({ changes, all, moment }) {
  const columns = all ? COLUMNS : COLUMNS.filter((c) => c.name !== "Namespace");
  const gone = (track) => track.entries.at(-1)?.change === "Deleted";
  const link = ({ track }) => (track && !gone(track) ? objectLink(track.resource, track.namespace, track.name, historyKind() ? "history" : "") : "");
  return html`<${VirtualTable} label="Changes" columns=${columns} count=${changes.length}
    rowKey=${(row) => `${changes[row].track?.key ?? ""}/${changes[row].entry.revision}`}
    cell=${(row, column) => html`<${Cell} change=${changes[row]} column=${column} />`}
    href=${(row) => link(changes[row])} open=${(row) => moment.choose(changes[row].entry.time)}
    row=${(row) => (changes[row].turn === "bad" ? "turned" : "")} />`;
}

function One({ one: { track, entry, gone }, all }) {
  const text = html`<span class="kind">${track.resource.kind}</span> ${track.name}`;
  return html`<li>${gone ? text : html`<a href=${objectLink(track.resource, track.namespace, track.name)}>${text}</a>`}
    ${all && track.namespace && html` <span class="quiet">in ${track.namespace}</span>`}
    ${gone && html` <span class="quiet">gone since</span>`}
    ${entry.problem && html`<span class=${`said status ${entry.problem.bad ? "bad" : "wait"}`}>${entry.problem.text}</span>`}</li>`;
}

function Kinds({ objects, all }) {
  const [open, setOpen] = useState("");
  const groups = new Map();
  for (const one of objects) {
    const id = idOf(one.track.resource);
    if (groups.has(id)) groups.get(id).push(one);
    else groups.set(id, [one]);
  }
  const sorted = [...groups].sort((a, b) => a[1][0].track.resource.kind.localeCompare(b[1][0].track.resource.kind));
  return html`<ul class="existed">${sorted.map(([id, list]) => html`<li key=${id}>
    <button class="plain fold" aria-expanded=${open === id} onClick=${() => setOpen(open === id ? "" : id)}><${Icon} name="chevron" />${list[0].track.resource.kind}
      <span class="quiet">${list.length.toLocaleString("en")}</span></button>
    ${open === id && html`<ul>${list.slice(0, LISTED).map((one) => html`<${One} key=${one.track.key} one=${one} all=${all} />`)}
      ${list.length > LISTED && html`<li class="quiet">and ${(list.length - LISTED).toLocaleString("en")} more</li>`}</ul>`}</li>`)}</ul>`;
}

function State({ state: { objects, unhealthy }, gaps, moment, all }) {
  return html`<section class="review state" aria-label="State">
    <div class="bar"><h2>${moment.live ? "The state now" : `The state at ${clock(moment.time, moment.span)}`}</h2>
      ${!moment.live && html`<button onClick=${moment.toNow}>Back to now</button>`}</div>
    <p role="status">${objects.length.toLocaleString("en")} objects, ${unhealthy.length.toLocaleString("en")} unhealthy</p>
    ${unhealthy.length > 0 && html`<ul class="unhealthy" aria-label="Unhealthy objects">${unhealthy.slice(0, LISTED).map((one) => html`<${One} key=${one.track.key} one=${one} all=${all} />`)}
      ${unhealthy.length > LISTED && html`<li class="quiet">and ${(unhealthy.length - LISTED).toLocaleString("en")} more</li>`}</ul>`}
    <${Kinds} objects=${objects} all=${all} />
    ${gaps.length > 0 && html`<h3>Not shown</h3><ul class="lines">${gaps.slice(0, LISTED).map((g) => html`<li key=${g}><span class="quiet">${g}</span></li>`)}</ul>`}
  </section>`;
}

/** What is shown of a journal: the changes of the window that match, and the kinds there are. */
function useMatching(journal, version, { kind, filter, turns }) {
  const known = useMemo(() => {
    const changes = journal?.tracks.changes() ?? [];
    return changes.map((change) => ({ ...change, text: textOf(change) }));
  }, [journal, version]);
  const kinds = useMemo(() => {
    const found = new Map();
    for (const track of journal?.tracks.all.values() ?? []) found.set(idOf(track.resource), track.resource);
    return [...found].sort((a, b) => a[1].kind.localeCompare(b[1].kind));
  }, [journal, version]);
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const ofKind = (track) => !kind || (track && idOf(track.resource) === kind);
  const matching = useMemo(() => known.filter((c) => ofKind(c.track) && (!turns || c.turn) && words.every((w) => c.text.includes(w))), [known, kind, filter, turns]);
  return { matching, kinds, ofKind };
}

export function ChangesView({ query }) {
  const asked = query.get("ns");
  useEffect(() => {
    if (asked === null) return;
    namespace.value = asked;
    sessionStorage.setItem("kaji.namespace", asked);
  }, [asked]);
  const ns = namespace.value;
  const moment = useMoment();
  const { journal, version, state, error, again } = useJournal(ns, moment.span);
  const [kind, setKind] = useState(query.get("kind") ?? "");
  const [filter, setFilter] = useState(query.get("q") ?? "");
  const [turns, setTurns] = useState(false);
  const { matching, kinds, ofKind } = useMatching(journal, version, { kind, filter, turns });
  const { start, end, span, time } = moment;
  const inWindow = useMemo(() => matching.filter(({ entry }) => entry.time >= start && entry.time <= end), [matching, start, end]);
  const bars = useMemo(() => barsOf(inWindow.map(({ entry, turn }) => [entry.time, turn === "bad"]), start, span), [inWindow, start, span]);
  const changes = useMemo(() => (moment.live ? inWindow : inWindow.filter(({ entry }) => entry.time <= time)), [inWindow, time]);
  const then = useMemo(() => {
    const all = journal?.tracks.state(time) ?? { objects: [], unhealthy: [] };
    return { objects: all.objects.filter((o) => ofKind(o.track)), unhealthy: all.unhealthy.filter((o) => ofKind(o.track)) };
  }, [journal, version, time, kind]);
  const since = moment.live ? 0 : matching.filter(({ entry }) => entry.time > time).length;
  return html`<div class="page fill">
    <div class="bar"><h1>Changes</h1><span class="count" role="status">${state === "reading" ? "" : `${changes.length.toLocaleString("en")} changes`}</span>
      <span class=${`live ${moment.live && state === "live" ? "live" : ""}`}>${state !== "live" ? "" : moment.live ? "live" : `until ${clock(time, span)}${since ? `, ${since.toLocaleString("en")} since` : ""}`}</span><span class="grow"></span>
      <label class="field"><span class="hidden">Kind</span><select class="kinds" value=${kind} onChange=${(e) => setKind(e.currentTarget.value)}><option value="">All kinds</option>
        ${kind && !kinds.some(([id]) => id === kind) && html`<option value=${kind}>${kind}</option>`}
        ${kinds.map(([id, r]) => html`<option key=${id} value=${id}>${r.kind}${r.group ? ` (${r.group})` : ""}</option>`)}</select></label>
      <input type="search" data-filter class="filter" aria-label="Filter changes" placeholder="Filter ( / )" value=${filter} onInput=${(e) => setFilter(e.currentTarget.value)} />
      <label class="check"><input type="checkbox" checked=${turns} onChange=${(e) => setTurns(e.currentTarget.checked)} />Health only</label>
      <${Span} value=${span} onSpan=${moment.setSpan} /><a href="#/timeline">Events</a></div>
    ${error && html`<${Failure} error=${error} again=${again} />`}
    <${Strip} label="Changes over time" bars=${bars} at=${moment.at} start=${start} span=${span} text=${moment.live ? "now" : clock(time, span)} last=${moment.live ? "now" : clock(end, span)} onAt=${moment.scrub} />
    ${state === "reading" && html`<${Loading} what="Reading objects" />`}
    ${state !== "reading" && html`<div class="split changes"><div class="list">${changes.length > 0
      ? html`<${Changes} changes=${changes} all=${!ns} moment=${moment} />`
      : html`<${Empty}>${filter || kind || turns ? "Nothing matches." : "Nothing changed then."}</${Empty}>`}</div>
      <${State} state=${then} gaps=${journal?.gaps() ?? []} moment=${moment} all=${!ns} /></div>`}
  </div>`;
}
