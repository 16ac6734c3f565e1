// The object as YAML: edited, shown to the server as a dry run, compared, and only then written.
//
// What was changed is applied by server-side apply, so that fields of other managers are named as conflicts before they are taken over.
// Fields that were removed are not taken away by an apply unless this page owned them; such a change is a merge patch on the very revision that
// was read, and the managers that own the fields are named from the object's managedFields.
import { html, useEffect, useMemo, useRef, useState, yaml } from "./vendor.js";
import { query, request } from "./api.js";
import { objectPath } from "./kinds.js";
import { around, changes, isNewer, lines, ownersOf } from "./diff.js";
import { editorIn } from "./codemirror.js";
import { Failure, Loading, note } from "./ui.js";

const MANAGER = "kaji-console";

/** The object without what only the server writes about. */
export function shown(object, whole = false) {
  const copy = structuredClone(object);
  if (!whole) delete copy.metadata.managedFields;
  return copy;
}

/** What differs whatever is written. */
function compared(object) {
  const copy = shown(object);
  for (const field of ["resourceVersion", "generation"]) delete copy.metadata[field];
  return copy;
}

export function Diff({ before, after }) {
  const all = useMemo(() => around(lines(before, after)), [before, after]);
  if (all.every((line) => line === null)) return html`<p class="quiet">Nothing would change.</p>`;
  return html`<pre class="diff" tabindex="0" role="region" aria-label="Differences">${all.map((line, i) => (line === null
    ? html`<span key=${i} class="cut">⋯</span>`
    : html`<span key=${i} class=${line.kind === "+" ? "plus" : line.kind === "-" ? "minus" : ""}><span class="hidden">${line.kind === "+" ? "added " : line.kind === "-" ? "removed " : ""}</span>${line.kind} ${line.text}</span>`))}</pre>`;
}

/** The request that writes the change: `{patch, type, conflicts, values}`. */
function planOf(base, edited) {
  const { patch, removed } = changes(shown(base), edited);
  const identity = { apiVersion: base.apiVersion, kind: base.kind };
  if (removed.length === 0) {
    const meta = { name: base.metadata.name, ...(base.metadata.namespace && { namespace: base.metadata.namespace }) };
    return { type: "application/apply-patch+yaml", body: { ...patch, ...identity, metadata: { ...patch.metadata, ...meta } }, owners: [], removed };
  }
  const body = structuredClone(patch);
  for (const path of removed) {
    let at = body;
    for (const part of path.slice(0, -1)) at = at[part] ??= {};
    at[path.at(-1)] = null;
  }
  body.metadata = { ...body.metadata, resourceVersion: base.metadata.resourceVersion };
  const owners = removed.map((path) => ({ field: `.${path.join(".")}`, managers: ownersOf(base, path).filter((m) => m !== MANAGER) })).filter((o) => o.managers.length);
  return { type: "application/merge-patch+json", body, owners, removed };
}

function send(path, plan, { dryRun, force }) {
  const apply = plan.type.startsWith("application/apply");
  return request(query(path, { fieldManager: MANAGER, fieldValidation: "Strict", ...(dryRun && { dryRun: "All" }), ...(force && apply && { force: "true" }) }),
    { method: "PATCH", type: plan.type, body: plan.body });
}

export function Editor({ resource, object }) {
  const box = useRef(null), editor = useRef(null);
  const [base, setBase] = useState(object);
  const [library, setLibrary] = useState(null);
  const [dirty, setDirty] = useState(false);
  const [review, setReview] = useState(null);
  const [busy, setBusy] = useState(false);
  const [force, setForce] = useState(false);
  const path = objectPath(resource, object.metadata.namespace, object.metadata.name);
  const editable = resource.verbs.includes("patch");
  useEffect(() => {
    let gone = false;
    (async () => {
      const lib = await yaml();
      const made = await editorIn(box.current, {
        text: lib.stringify(shown(object), { lineWidth: 0 }), resource, readOnly: !editable, label: `${resource.kind} as YAML`,
        onChange: () => { setDirty(true); setReview(null); },
      });
      if (gone) return made.destroy();
      editor.current = made;
      setLibrary(lib);
    })();
    return () => { gone = true; editor.current?.destroy(); };
  }, []);
  // What was just written may be shown by the watch only later.
  const newer = isNewer(object, base);
  const reload = () => {
    editor.current.replace(library.stringify(shown(object), { lineWidth: 0 }));
    setBase(object); setDirty(false); setReview(null);
  };
  useEffect(() => { if (newer && !dirty && library) reload(); }, [newer, dirty, library]);
  const look = async (forced) => {
    setBusy(true);
    try {
      const edited = library.parse(editor.current.text());
      if (!edited || typeof edited !== "object") throw new Error("The text is no object.");
      const plan = planOf(base, edited);
      try {
        const result = await send(path, plan, { dryRun: true, force: forced });
        setReview({ plan, taken: forced ? review?.conflicts ?? [] : [], before: library.stringify(compared(base)), after: library.stringify(compared(result)) });
      } catch (error) {
        setReview({ plan, error, conflicts: error.code === 409 ? error.causes : [] });
      }
    } catch (error) {
      setReview({ error });
    }
    setBusy(false);
  };
  const write = async () => {
    setBusy(true);
    try {
      const written = await send(path, review.plan, { force });
      note(`${resource.kind} ${object.metadata.name} is written.`);
      editor.current.replace(library.stringify(shown(written), { lineWidth: 0 }));
      setBase(written); setDirty(false); setReview(null); setForce(false);
    } catch (error) {
      setReview({ ...review, error, conflicts: error.code === 409 ? error.causes : [] });
    }
    setBusy(false);
  };
  const asks = review && (review.conflicts?.length > 0 || review.plan?.owners.length > 0);
  return html`<div class="bar">
      <button class="primary" disabled=${!dirty || busy || !editable} onClick=${() => { setForce(false); look(false); }}>Review the change</button>
      <button disabled=${!dirty || busy} onClick=${reload}>Undo</button>
      ${newer && dirty && html`<span class="status wait">It was changed meanwhile: <button onClick=${reload}>Take the new one</button></span>`}
      <span class="quiet">${editable ? "Ctrl+Space completes by the schema" : "This kind cannot be changed"}</span></div>
    <div class="split"><div class="editor" ref=${box}>${!library && html`<${Loading} />`}</div>
    ${review && html`<aside class="review" aria-label="Review">
      <h2>What the server would do</h2>
      ${review.error && !review.conflicts?.length && html`<${Failure} error=${review.error} />`}
      ${asks && html`<div class="conflicts" role="alert"><p><b>${review.conflicts?.length ? "Other managers own what was changed" : "Other managers own what was removed"}</b></p>
        <ul>${(review.conflicts ?? []).map((c) => html`<li key=${c.field + c.message}><code>${c.field}</code> ${c.message}</li>`)}
          ${(review.plan?.owners ?? []).map((o) => html`<li key=${o.field}><code>${o.field}</code> ${o.managers.join(", ")}</li>`)}</ul>
        <label class="check"><input type="checkbox" checked=${force} onChange=${(e) => { setForce(e.currentTarget.checked); if (e.currentTarget.checked && review.conflicts?.length) look(true); }} />Change it all the same, and own it from now on</label></div>`}
      ${review.taken?.length > 0 && html`<p class="conflicts"><b>These fields are taken over:</b> ${review.taken.map((c) => html`<code key=${c.field}>${c.field}</code> `)}</p>`}
      ${review.after !== undefined && html`<${Diff} before=${review.before} after=${review.after} />`}
      <footer><button onClick=${() => setReview(null)}>Back</button>
        <button class="primary" disabled=${busy || review.after === undefined || (asks && !force) || review.before === review.after} onClick=${write}>Write it</button></footer>
    </aside>`}</div>`;
}
