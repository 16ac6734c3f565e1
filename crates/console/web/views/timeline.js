// What happened, and when: events as they come, over a strip of time with a scrubber.
import { html, useEffect, useMemo, useState } from "../vendor.js";
import { namespace, objectLink, ofKind } from "../kinds.js";
import { BARS, barsOf, clock, Span, SPANS, Strip } from "../strip.js";
import { age, Empty, Failure, Loading, now } from "../ui.js";
import { followEvents } from "./events.js";
import { last } from "./problems.js";

const MOST = 5000;
const SHOWN = 400;

// Where the timeline gets what happened. What changed in objects is another view (changes.js).
const source = (ns, signal, set) => followEvents(`/api/v1/${ns ? `namespaces/${ns}/` : ""}events`, MOST, signal, set);

export function TimelineView() {
  const [events, set] = useState(null);
  const [error, fail] = useState(null);
  const [span, setSpan] = useState(SPANS[1][0]);
  const [at, setAt] = useState(BARS);
  const [warnings, setWarnings] = useState(false);
  const [filter, setFilter] = useState("");
  const ns = namespace.value;
  useEffect(() => {
    const stop = new AbortController();
    set(null);
    fail(null);
    source(ns, stop.signal, set).catch((e) => { if (!stop.signal.aborted) fail(e); });
    return () => stop.abort(new DOMException("left", "AbortError"));
  }, [ns]);
  const tick = Math.floor(now.value / 5000) * 5000;
  const end = tick + 5000, start = end - span;
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const matching = useMemo(() => (events ?? []).filter((e) => {
    if (warnings && e.type !== "Warning") return false;
    const text = `${e.involvedObject?.kind} ${e.involvedObject?.name} ${e.involvedObject?.namespace ?? ""} ${e.reason} ${e.message}`.toLowerCase();
    return words.every((w) => text.includes(w));
  }), [events, warnings, filter]);
  const bars = useMemo(() => barsOf(matching.map((e) => [new Date(last(e)).getTime(), e.type === "Warning"]), start, span), [matching, tick, span]);
  const moment = start + (at / BARS) * span;
  const live = at === BARS;
  const listed = matching.filter((e) => { const t = new Date(last(e)).getTime(); return t >= start && (live || t <= moment); }).slice(0, SHOWN);
  return html`<div class="page">
    <div class="bar"><h1>Timeline</h1><span class="count" role="status">${events === null ? "" : `${listed.length} events`}</span><span class=${`live ${live ? "live" : ""}`}>${live ? "live" : `until ${clock(moment)}`}</span><span class="grow"></span>
      <input type="search" data-filter class="filter" aria-label="Filter events" placeholder="Filter ( / )" value=${filter} onInput=${(e) => setFilter(e.currentTarget.value)} />
      <label class="check"><input type="checkbox" checked=${warnings} onChange=${(e) => setWarnings(e.currentTarget.checked)} />Warnings only</label>
      <${Span} value=${span} most=${4} onSpan=${setSpan} /><a href="#/changes">Changes of objects</a></div>
    ${error && html`<${Failure} error=${error} />`}
    <${Strip} label="Events over time" bars=${bars} at=${at} start=${start} span=${span} text=${live ? "now" : clock(moment)} onAt=${setAt} />
    ${events === null && !error && html`<${Loading} />`}
    ${events !== null && listed.length === 0 && html`<${Empty}>Nothing happened then. Events are kept for an hour.</${Empty}>`}
    <ol class="moments">${listed.map((e) => {
      const of = e.involvedObject ?? {};
      const resource = ofKind(of.apiVersion || "v1", of.kind);
      return html`<li key=${e.metadata.uid} class=${e.type === "Warning" ? "warning" : ""}>
        <time datetime=${last(e)} title=${last(e)}>${clock(last(e))}</time><span class="quiet ago">${age(last(e), now.value)}</span>
        <span class="of">${resource ? html`<a href=${objectLink(resource, of.namespace, of.name)}>${of.kind} ${of.name}</a>` : `${of.kind} ${of.name}`}</span>
        <span><b>${e.reason}</b> ${e.message}${(e.count ?? 1) > 1 && html` <span class="quiet">× ${e.count}</span>`}</span></li>`;
    })}</ol>
  </div>`;
}
