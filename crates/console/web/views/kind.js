// All objects of one kind, in the server's columns.
import { html, useEffect, useMemo, useState } from "../vendor.js";
import { Collection } from "../collection.js";
import { changesLink, collectionPath, find, kindLink, namespace, objectLink } from "../kinds.js";
import { age, Empty, Failure, now, Status } from "../ui.js";
import { VirtualTable } from "../virtual.js";

const NUMBER = new Set(["integer", "number"]);

function widthOf(column, samples) {
  if (column.name === "Name") return "minmax(200px, 2fr)";
  if (column.name === "Namespace") return "minmax(110px, 1fr)";
  const longest = samples.reduce((n, text) => Math.max(n, String(text ?? "").length), column.name.length + 2);
  // The mark of a status, too.
  const px = Math.min(320, (column.type === "string" ? 36 : 22) + longest * 7.2);
  return longest > 30 ? `minmax(${Math.min(180, px)}px, 1.5fr)` : `minmax(${Math.round(px)}px, ${Math.max(0.3, longest / 30).toFixed(2)}fr)`;
}

const collator = new Intl.Collator("en", { numeric: true });

function compare(a, b) {
  const [x, y] = [parseFloat(a), parseFloat(b)];
  if (!Number.isNaN(x) && !Number.isNaN(y) && x !== y) return x - y;
  return collator.compare(a ?? "", b ?? "");
}

export function KindView({ parts, query }) {
  const [group, plural] = [parts[0] === "core" ? "" : parts[0], parts[1]];
  const resource = find(group, plural);
  if (!resource) return html`<${Empty}>The cluster serves no ${plural}${group && ` of ${group}`}. Another namespace or a new definition may have them.</${Empty}>`;
  return html`<${Kind} key=${`${group}/${plural}`} resource=${resource} query=${query} />`;
}

function Kind({ resource, query }) {
  const [filter, setFilter] = useState(query.get("q") ?? "");
  const [labels, setLabels] = useState(query.get("labels") ?? "");
  const [given, setGiven] = useState(labels);
  const [all, setAll] = useState(false);
  const [sort, setSort] = useState(null);
  const ns = resource.namespaced ? namespace.value : "";
  const [collection, setCollection] = useState(null);
  const fields = query.get("fields") ?? "";
  useEffect(() => {
    const next = new Collection(collectionPath(resource, ns), { labels, fields });
    setCollection(next);
    return () => next.close();
  }, [resource.group, resource.plural, ns, labels, fields]);
  const version = collection?.version.value ?? 0;
  const columns = useMemo(() => {
    const definitions = (collection?.columns.value ?? []).map((c, index) => ({ ...c, index, number: NUMBER.has(c.type) }));
    const samples = collection ? [...take(collection.rows.values(), 60)] : [];
    const shown = definitions.filter((c) => all || c.priority === 0);
    const result = shown.map((c) => ({
      name: c.name, index: c.index, number: c.number, title: c.description, width: widthOf(c, samples.map((r) => r.cells[c.index])),
    }));
    if (resource.namespaced && !ns) result.splice(1, 0, { name: "Namespace", index: -1, width: widthOf({ name: "Namespace" }, []) });
    return result;
  }, [collection?.columns.value, all, ns, collection?.rows.size > 0]);
  const rows = useMemo(() => {
    if (!collection) return [];
    let list = [...collection.rows.values()];
    const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length) {
      list = list.filter((r) => words.every((w) => r.name.includes(w) || r.namespace.includes(w)
        || r.cells.some((c) => typeof c === "string" && c.toLowerCase().includes(w))));
    }
    if (sort) {
      const text = sort.column === "Age" ? (r) => r.created : sort.index < 0 ? (r) => r.namespace : (r) => r.cells[sort.index];
      const sign = (sort.down ? -1 : 1) * (sort.column === "Age" ? -1 : 1);
      const by = sort.column === "Age" ? (a, b) => (a < b ? -1 : a > b ? 1 : 0) : compare;
      list.sort((a, b) => sign * by(text(a), text(b)));
    }
    return list;
  }, [collection, version, filter, sort]);
  const link = (r) => objectLink(resource, r.namespace, r.name);
  const cell = (row, column) => {
    const r = rows[row];
    if (column.index < 0) return r.namespace;
    if (column.name === "Age" && r.created) return age(r.created, now.value);
    const value = r.cells[column.index];
    return typeof value === "string" ? html`<${Status} text=${value} />` : value === null || value === undefined ? "" : String(value);
  };
  const state = collection?.state.value;
  const title = resource.kind;
  return html`<div class="page fill">
    <div class="bar">
      <h1>${title} <span class="quiet">${resource.group}</span></h1>
      <span class="count" role="status">${rows.length.toLocaleString("en")}${filter && collection ? ` of ${collection.rows.size.toLocaleString("en")}` : ""}${
        state === "reading" && collection?.left.value ? `, ${collection.left.value.toLocaleString("en")} still to read` : ""}</span>
      <span class=${`live ${state}`} title=${state}>${state === "live" ? "live" : state === "reading" ? "reading…" : ""}</span>
      ${fields && html`<a class="button" href=${kindLink(resource)} title="Show all">${fields} <span aria-hidden="true">✕</span></a>`}
      <span class="grow"></span>
      ${resource.verbs.includes("watch") && html`<a href=${changesLink({ kind: resource })}>Changes</a>`}
      <label class="field"><span class="hidden">Filter</span>
        <input type="search" class="filter" data-filter placeholder="Filter ( / )" value=${filter} onInput=${(e) => setFilter(e.currentTarget.value)} /></label>
      <form onSubmit=${(e) => { e.preventDefault(); setLabels(given); }}><label class="field"><span class="hidden">Label selector</span>
        <input type="text" placeholder="app=web,tier!=cache" value=${given} onInput=${(e) => setGiven(e.currentTarget.value)} onBlur=${() => setLabels(given)} /></label></form>
      <label class="check"><input type="checkbox" checked=${all} onChange=${(e) => setAll(e.currentTarget.checked)} />All columns</label>
    </div>
    ${collection?.error.value && html`<${Failure} error=${collection.error.value} again=${() => setCollection((old) => { old.close(); return new Collection(collectionPath(resource, ns), { labels, fields }); })} />`}
    ${columns.length > 0 && html`<${VirtualTable} label=${title} columns=${columns} count=${rows.length} cell=${cell}
      rowKey=${(row) => rows[row].uid} href=${(row) => link(rows[row])} open=${(row) => { location.hash = link(rows[row]); }}
      row=${(row) => (rows[row].deleted ? "leaving" : "")}
      sort=${sort} onSort=${(c) => setSort((old) => (old?.column === c.name ? (old.down ? null : { ...old, down: true }) : { column: c.name, index: c.index, down: false }))} />`}
    ${state === "live" && rows.length === 0 && html`<${Empty}>${filter ? "Nothing matches the filter." : `There are no ${resource.plural} here.`}</${Empty}>`}
  </div>`;
}

function* take(iterable, most) {
  let n = 0;
  for (const one of iterable) {
    if (n++ >= most) return;
    yield one;
  }
}
