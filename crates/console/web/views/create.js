// New objects: YAML, one or several documents, applied after a dry run.
import { html, useEffect, useRef, useState, yaml } from "../vendor.js";
import { query, request } from "../api.js";
import { namespace, objectLink, objectPath, ofKind } from "../kinds.js";
import { editorIn } from "../codemirror.js";
import { Failure, note } from "../ui.js";

const EXAMPLE = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  replicas: 2
  selector:
    matchLabels: {app: web}
  template:
    metadata:
      labels: {app: web}
    spec:
      containers:
        - name: web
          image: nginx
`;

export function CreateView() {
  const box = useRef(null), editor = useRef(null);
  const [results, setResults] = useState([]);
  const [tried, setTried] = useState(false);
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    let gone = false;
    editorIn(box.current, { text: EXAMPLE, resource: ofKind("apps/v1", "Deployment"), label: "New objects as YAML", onChange: () => { setTried(false); setResults([]); } })
      .then((made) => { if (gone) made.destroy(); else editor.current = made; });
    return () => { gone = true; editor.current?.destroy(); };
  }, []);
  const run = async (dryRun) => {
    setBusy(true);
    const library = await yaml();
    const out = [];
    for (const text of editor.current.text().split(/^---\s*$/m)) {
      let object;
      try {
        object = library.parse(text);
        if (!object) continue;
        const resource = ofKind(object.apiVersion ?? "", object.kind ?? "");
        if (!resource) throw new Error(`The cluster serves no ${object.kind} of ${object.apiVersion}.`);
        if (!object.metadata?.name) throw new Error("It has no metadata.name.");
        const ns = resource.namespaced ? object.metadata.namespace ?? (namespace.value || "default") : "";
        const path = objectPath(resource, ns, object.metadata.name);
        const body = { ...object, metadata: { ...object.metadata, ...(ns && { namespace: ns }) } };
        await request(query(path, { fieldManager: "kaji-console", fieldValidation: "Strict", ...(dryRun && { dryRun: "All" }) }),
          { method: "PATCH", type: "application/apply-patch+yaml", body });
        out.push({ title: `${object.kind} ${object.metadata.name}`, link: dryRun ? null : objectLink(resource, ns, object.metadata.name) });
      } catch (error) {
        out.push({ title: object?.kind ? `${object.kind} ${object.metadata?.name ?? ""}` : "YAML", error });
      }
    }
    setResults(out);
    const well = out.length > 0 && out.every((r) => !r.error);
    setTried(dryRun && well);
    if (!dryRun && well) note(`${out.length} written.`);
    setBusy(false);
  };
  return html`<div class="page fill">
    <div class="bar"><h1>Create</h1><span class="quiet">into ${namespace.value || "default"} unless it names another namespace</span><span class="grow"></span>
      <button disabled=${busy} onClick=${() => run(true)}>Try</button>
      <button class="primary" disabled=${busy || !tried} onClick=${() => run(false)}>Write</button></div>
    <div role="status"><ul class="lines">${results.map((r) => html`<li key=${r.title}>${r.error
      ? html`<${Failure} error=${r.error} />`
      : html`<span class="status good">${r.title} ${r.link ? html`<a href=${r.link}>Open</a>` : "would be written"}</span>`}</li>`)}</ul></div>
    <div class="editor" ref=${box}></div>
  </div>`;
}
