// Events of an object, followed.
import { html, useEffect, useState } from "../vendor.js";
import { listAll, query, watch } from "../api.js";
import { age, Empty, Failure, now } from "../ui.js";
import { last } from "./problems.js";

/** Follows events: calls `set` with the newest first, at most `most`. */
export function followEvents(path, most, signal, set) {
  const events = new Map();
  let timer = 0;
  const show = () => {
    timer = 0;
    const all = [...events.values()].sort((a, b) => (last(a) < last(b) ? 1 : -1));
    for (const old of all.slice(most)) events.delete(old.metadata.uid);
    set(all.slice(0, most));
  };
  const later = () => { timer ||= setTimeout(show, 150); };
  signal.addEventListener("abort", () => clearTimeout(timer), { once: true });
  return (async () => {
    while (!signal.aborted) {
      const { items, resourceVersion } = await listAll(path, { most, signal });
      events.clear();
      for (const e of items) events.set(e.metadata.uid, e);
      show();
      await watch(path, { resourceVersion, signal, onEvent: (e) => {
        if (e.type === "DELETED") return;
        events.set(e.object.metadata.uid, e.object);
        later();
      } });
    }
  })();
}

export function EventList({ ns, uid, short }) {
  const [events, set] = useState(null);
  const [error, fail] = useState(null);
  useEffect(() => {
    const stop = new AbortController();
    const path = query(`/api/v1/${ns ? `namespaces/${ns}/` : ""}events`, { fieldSelector: `involvedObject.uid=${uid}` });
    followEvents(path, short ? 12 : 300, stop.signal, set).catch((e) => { if (!stop.signal.aborted) fail(e); });
    return () => stop.abort(new DOMException("left", "AbortError"));
  }, [ns, uid]);
  if (error) return html`<${Failure} error=${error} />`;
  if (events === null) return null;
  if (!events.length) return html`<${Empty}>There are no events of it. They are kept for an hour.</${Empty}>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Events"><table class="grid"><thead><tr><th>Last</th><th>Type</th><th>Reason</th><th>Message</th><th>Count</th><th>From</th></tr></thead><tbody>
    ${events.map((e) => html`<tr key=${e.metadata.uid}><td>${age(last(e), now.value)}</td><td>${e.type === "Warning" ? html`<span class="status wait">Warning</span>` : e.type}</td>
      <td>${e.reason}</td><td class="long">${e.message}</td><td>${e.series?.count ?? e.count ?? 1}</td><td class="quiet">${e.source?.component ?? e.reportingComponent ?? ""}</td></tr>`)}
  </tbody></table></div>`;
}
