export { basicSetup, EditorView } from "codemirror";
export { EditorState, Compartment } from "@codemirror/state";
export { keymap } from "@codemirror/view";
export { yaml } from "@codemirror/lang-yaml";
export { autocompletion, startCompletion } from "@codemirror/autocomplete";
export { linter, lintGutter } from "@codemirror/lint";
export { HighlightStyle, syntaxHighlighting } from "@codemirror/language";
export { tags } from "@lezer/highlight";
