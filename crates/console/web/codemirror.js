// The text editor: YAML, completion by the schema, in the console's colours.
import { codemirror } from "./vendor.js";
import { pathAt, schemaOf } from "./schema.js";

/** Makes an editor in `parent`: `{text(), replace(text), destroy()}`. */
export async function editorIn(parent, { text, resource, onChange, readOnly, label }) {
  const cm = await codemirror();
  const nonce = document.querySelector('meta[name="csp-nonce"]')?.content ?? "";
  let lookup = null;
  if (resource) schemaOf(resource).then((found) => { lookup = found; }, () => undefined);
  const complete = (context) => {
    if (!lookup) return null;
    const at = pathAt(context.state.doc.toString(), context.pos);
    const schema = lookup(at.path);
    if (!schema) return null;
    const from = context.pos - at.word.length;
    if (at.value) return schema.values.length ? { from, options: schema.values.map((label) => ({ label: String(label), type: "enum" })) } : null;
    if (!context.explicit && !at.word) return null;
    return { from, validFor: /^[\w./-]*$/, options: schema.fields.map((f) => ({
      label: f.name, type: "property", detail: f.type, info: f.detail || undefined, boost: f.required ? 1 : 0,
      apply: f.type === "object" || f.type === "array" ? `${f.name}:` : `${f.name}: `,
    })) };
  };
  const { tags } = cm;
  const style = cm.HighlightStyle.define([
    { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--accent)" },
    { tag: tags.comment, color: "var(--quiet)" },
    { tag: [tags.keyword, tags.bool, tags.null], color: "var(--wait)" },
    { tag: tags.string, color: "var(--good)" },
    { tag: tags.meta, color: "var(--quiet)" },
  ]);
  const theme = cm.EditorView.theme({
    "&": { height: "100%", backgroundColor: "var(--card)", color: "var(--text)", fontSize: "12.5px" },
    ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.5" },
    ".cm-gutters": { backgroundColor: "var(--card)", color: "var(--quiet)", border: "0" },
    ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--raised)" },
    "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--accent-soft) !important" },
    ".cm-content": { caretColor: "var(--text)" },
    ".cm-cursor": { borderLeftColor: "var(--text)" },
    ".cm-tooltip": { backgroundColor: "var(--card)", border: "1px solid var(--line)", borderRadius: "6px", color: "var(--text)" },
    ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent-soft)", color: "var(--accent)" },
    ".cm-completionInfo": { maxWidth: "380px", padding: "6px 10px", whiteSpace: "pre-wrap" },
    ".cm-foldPlaceholder": { backgroundColor: "var(--raised)", border: "0", color: "var(--quiet)" },
    ".cm-panels": { backgroundColor: "var(--raised)", color: "var(--text)" },
  });
  const view = new cm.EditorView({
    parent,
    state: cm.EditorState.create({
      doc: text,
      extensions: [
        cm.EditorView.cspNonce.of(nonce),
        cm.basicSetup, cm.yaml(), cm.syntaxHighlighting(style), theme,
        cm.autocompletion({ override: [complete] }),
        cm.EditorState.readOnly.of(Boolean(readOnly)),
        cm.EditorView.contentAttributes.of({ "aria-label": label ?? "YAML" }),
        cm.EditorView.updateListener.of((update) => { if (update.docChanged) onChange?.(update.state.doc.toString()); }),
      ],
    }),
  });
  // The scrolled region has the focusable text in it, but no name of its own.
  view.scrollDOM.setAttribute("tabindex", "0");
  view.scrollDOM.setAttribute("role", "group");
  view.scrollDOM.setAttribute("aria-label", "Text");
  return {
    text: () => view.state.doc.toString(),
    replace: (next) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: next } }),
    destroy: () => view.destroy(),
    view,
  };
}
