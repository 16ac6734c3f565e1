// The revisions of an object, with the requests that made them: a scrubber, what changed at each, and the object as it was.
//
// There where the server keeps a history (history.kaji.dev); it shows it to users that may get the object.
import { html, useEffect, useMemo, useState, yaml } from "../vendor.js";
import { get, query } from "../api.js";
import { changesLink, collectionPath, historyKind } from "../kinds.js";
import { Diff, shown } from "../editor.js";
import { age, Empty, Failure, Loading, now, useLoad } from "../ui.js";

const MOST = 2000;
const LISTED = 200;

async function revisionsOf(resource, object, signal) {
  const fields = `object.resource=${resource.plural},object.name=${object.metadata.name}${resource.group ? `,object.group=${resource.group}` : ""}`;
  const path = query(collectionPath(historyKind(), object.metadata.namespace ?? ""), { fieldSelector: fields });
  const items = [];
  let next = "";
  do {
    const page = await get(query(path, { limit: 500, continue: next }), { signal });
    items.push(...(page.items ?? []));
    next = page.metadata?.continue ?? "";
  } while (next && items.length < MOST);
  return { items, more: Boolean(next), library: await yaml() };
}

/** Without what only says that there was a write. */
function text(library, state) {
  if (!state) return "";
  const copy = shown(state);
  for (const field of ["resourceVersion", "generation"]) delete copy.metadata?.[field];
  return library.stringify(copy, { lineWidth: 0 });
}

/** What a revision is to be compared with: the one before it that has a state. */
function before(items, at) {
  for (let i = at - 1; i >= 0; i--) if (items[i].state) return items[i].change === "Deleted" ? null : items[i].state;
  return null;
}

export function History({ resource, object }) {
  const { value, error, again } = useLoad((signal) => revisionsOf(resource, object, signal), [object.metadata.uid, object.metadata.resourceVersion]);
  const [at, setAt] = useState(-1);
  const [whole, setWhole] = useState(false);
  const count = value?.items.length ?? 0;
  const index = at < 0 || at >= count ? count - 1 : at;
  const revision = value?.items[index];
  // The newest stays chosen until another one is.
  useEffect(() => { if (at === count - 1) setAt(-1); }, [at, count]);
  const texts = useMemo(() => (revision ? [text(value.library, before(value.items, index)), text(value.library, revision.state)] : null), [value, index]);
  if (error) return html`<${Failure} error=${error} again=${again} />`;
  if (!value) return html`<${Loading} what="Reading revisions" />`;
  if (!revision) return html`<${Empty}>No revision of it is kept.</${Empty}>`;
  const from = Math.max(0, Math.min(index - LISTED / 2, count - LISTED));
  const listed = value.items.slice(from, from + LISTED).map((r, i) => [r, from + i]).reverse();
  const by = (r) => r.user || "unknown";
  return html`<div class="bar"><input class="scrub" type="range" min="0" max=${count - 1} value=${index} aria-label="Revision" aria-valuetext=${`${revision.change} at ${revision.time}`} onInput=${(e) => setAt(Number(e.currentTarget.value))} />
      <span class="count" role="status">${index + 1} of ${count.toLocaleString("en")}${value.more ? " and more" : ""}, ${age(revision.time, now.value)} ago</span>
      <a href=${changesLink({ ns: object.metadata.namespace })}>${object.metadata.namespace ? `All changes in ${object.metadata.namespace}` : "All changes"}</a>
      <label class="check"><input type="checkbox" checked=${whole} onChange=${(e) => setWhole(e.currentTarget.checked)} />The whole object</label></div>
    <div class="split"><ol class="revisions" aria-label="Revisions">${listed.map(([r, i]) => html`<li key=${r.metadata?.name ?? i}><button class="plain" aria-pressed=${i === index} onClick=${() => setAt(i)}>
        <span><b>${r.change}</b> by ${by(r)}</span><span class="quiet">${new Date(r.time).toLocaleString("en-GB")}${r.fieldManager && `, ${r.fieldManager}`}</span></button></li>`)}</ol>
      <section class="review" aria-label="Revision">
        <h2>${revision.change} ${revision.revision}</h2>
        <dl class="facts">${[["When", revision.time], ["User", by(revision)], ["Manager", revision.fieldManager], ["Agent", revision.userAgent], ["Request", [revision.verb, revision.subresource].filter(Boolean).join(" ")], ["Audit id", revision.auditID], ["Message", revision.message]]
          .filter(([, v]) => v).map(([k, v]) => html`<div key=${k}><dt>${k}</dt><dd>${v}</dd></div>`)}</dl>
        ${whole ? html`<pre class="diff" tabindex="0" role="region" aria-label="The object then">${texts[1]}</pre>` : html`<${Diff} before=${texts[0]} after=${texts[1] || (revision.change === "Deleted" ? "" : texts[0])} />`}
      </section></div>`;
}
