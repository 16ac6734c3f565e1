// Search with Ctrl-K: views, kinds, namespaces, and objects by name.
import { html, signal, useEffect, useMemo, useRef, useState } from "./vendor.js";
import { getMetadata, query } from "./api.js";
import { collectionPath, find, kindLink, kinds, namespace, namespaces, objectLink } from "./kinds.js";

export const paletteOpen = signal(false);

const VIEWS = [
  ["Problems", "#/"], ["Timeline", "#/timeline"], ["Changes", "#/changes"], ["Graph", "#/graph"], ["Logs", "#/logs"], ["Metrics", "#/metrics"],
  ["Access", "#/access"], ["Create", "#/new"],
];
// Kinds in which objects are looked for, and how many of each are read.
const LOOKED_FOR = ["/pods", "apps/deployments", "apps/statefulsets", "apps/daemonsets", "/services", "/nodes", "/configmaps",
  "/secrets", "batch/jobs", "batch/cronjobs", "networking.k8s.io/ingresses", "/persistentvolumeclaims", "/serviceaccounts"];
const MOST = 500;
const KEPT = 20_000;
let kept = { at: 0, ns: "", objects: [] };

async function objects(signal) {
  if (Date.now() - kept.at < KEPT && kept.ns === namespace.value) return kept.objects;
  const lists = await Promise.all(LOOKED_FOR.map(async (id) => {
    const [group, plural] = id.split("/");
    const resource = find(group, plural);
    if (!resource) return [];
    try {
      const list = await getMetadata(query(collectionPath(resource, namespace.value), { limit: MOST }), { signal });
      return (list.items ?? []).map((o) => ({ resource, name: o.metadata.name, namespace: o.metadata.namespace ?? "" }));
    } catch {
      return [];
    }
  }));
  kept = { at: Date.now(), ns: namespace.value, objects: lists.flat() };
  return kept.objects;
}

/** How well a text matches: smaller is better; nothing if it does not. */
function distance(text, words) {
  const lower = text.toLowerCase();
  let sum = 0;
  for (const word of words) {
    const at = lower.indexOf(word);
    if (at < 0) return null;
    sum += at === 0 ? 0 : /[-./ ]/.test(lower[at - 1]) ? 1 : 3;
  }
  return sum + lower.length / 100;
}

export function Palette() {
  const [text, setText] = useState("");
  const [found, setFound] = useState([]);
  const [at, setAt] = useState(0);
  const ref = useRef(null);
  useEffect(() => {
    const dialog = ref.current;
    dialog.showModal();
    const stop = new AbortController();
    objects(stop.signal).then(setFound, () => undefined);
    return () => stop.abort();
  }, []);
  const close = () => { paletteOpen.value = false; };
  const hits = useMemo(() => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const all = [
      ...VIEWS.map(([title, href]) => ({ title, note: "view", go: () => { location.hash = href; }, bonus: -0.5 })),
      ...kinds.value.map((r) => ({ title: r.kind, note: r.group || "core", extra: `${r.plural} ${r.shortNames.join(" ")}`, go: () => { location.hash = kindLink(r); }, bonus: -0.3 })),
      ...namespaces.value.map((n) => ({ title: n, note: "namespace", go: () => { namespace.value = n; sessionStorage.setItem("kaji.namespace", n); }, bonus: 0 })),
      ...(words.length ? found.map((o) => ({
        title: o.name, note: `${o.resource.kind}${o.namespace ? ` in ${o.namespace}` : ""}`, extra: o.resource.kind,
        go: () => { location.hash = objectLink(o.resource, o.namespace, o.name); }, bonus: 0.2,
      })) : []),
    ];
    if (!words.length) return all.slice(0, VIEWS.length);
    const scored = [];
    for (const one of all) {
      const short = one.extra?.toLowerCase().split(" ").includes(words[0]) && words.length === 1 ? -1 : null;
      const d = short ?? distance(`${one.title} ${one.extra ?? ""} ${one.note}`, words);
      if (d !== null) scored.push([d + one.bonus, one]);
    }
    scored.sort((a, b) => a[0] - b[0]);
    return scored.slice(0, 40).map(([, one]) => one);
  }, [text, found, kinds.value, namespaces.value]);
  const choose = (hit) => { close(); hit?.go(); };
  const onKey = (e) => {
    if (e.key === "ArrowDown") setAt(Math.min(at + 1, hits.length - 1));
    else if (e.key === "ArrowUp") setAt(Math.max(at - 1, 0));
    else if (e.key === "Enter") choose(hits[at]);
    else return;
    e.preventDefault();
  };
  useEffect(() => { document.getElementById(`hit-${at}`)?.scrollIntoView({ block: "nearest" }); }, [at]);
  return html`<dialog ref=${ref} class="palette" aria-label="Search" onCancel=${(e) => { e.preventDefault(); close(); }}
      onClick=${(e) => { if (e.target === ref.current) close(); }}>
    <input type="text" role="combobox" aria-expanded="true" aria-controls="hits" aria-activedescendant=${hits.length ? `hit-${at}` : undefined} aria-label="Search"
      placeholder="Kinds, objects, namespaces, views" value=${text} autofocus spellcheck="false"
      onInput=${(e) => { setText(e.currentTarget.value); setAt(0); }} onKeyDown=${onKey} />
    <ul id="hits" role="listbox" aria-label="Results">${hits.map((hit, i) => html`<li key=${`${hit.note}/${hit.title}`} id=${`hit-${i}`} role="option" aria-selected=${i === at}
      onClick=${() => choose(hit)} onMouseMove=${() => setAt(i)}><span>${hit.title}</span><small>${hit.note}</small></li>`)}</ul>
    ${hits.length === 0 && html`<p class="empty">Nothing is called that.</p>`}
  </dialog>`;
}
