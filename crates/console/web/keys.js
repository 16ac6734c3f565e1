// Keys of the whole console.
import { html, signal } from "./vendor.js";
import { Dialog } from "./ui.js";
import { paletteOpen } from "./search.js";
import { session } from "./session.js";

export const helpOpen = signal(false);

const PLACES = {
  p: ["Problems", "#/"], t: ["Timeline", "#/timeline"], c: ["Changes", "#/changes"], g: ["Graph", "#/graph"], l: ["Logs", "#/logs"], m: ["Metrics", "#/metrics"],
  a: ["Access", "#/access"], n: ["Nodes", "#/k/core/nodes"], o: ["Pods", "#/k/core/pods"], d: ["Deployments", "#/k/apps/deployments"],
};

let leader = 0;

export function listenToKeys() {
  addEventListener("keydown", (event) => {
    if (session.value === null) return;
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      paletteOpen.value = !paletteOpen.value;
      return;
    }
    const target = event.target instanceof Element ? event.target : document.body;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (target.closest("input,textarea,select,dialog,[contenteditable],.cm-editor,.xterm")) {
      if (event.key === "Escape" && target.matches("[data-filter]")) target.blur();
      return;
    }
    if (leader && Date.now() - leader < 1200 && PLACES[event.key]) {
      leader = 0;
      event.preventDefault();
      location.hash = PLACES[event.key][1];
    } else if (event.key === "g") {
      leader = Date.now();
    } else if (event.key === "?") {
      helpOpen.value = true;
    } else if (event.key === "/") {
      const field = document.querySelector("[data-filter]");
      if (field) {
        event.preventDefault();
        field.focus();
      }
    }
  });
}

export function Help() {
  const row = (keys, text) => html`<tr key=${text}><td>${keys.map((k) => html`<kbd>${k}</kbd> `)}</td><td>${text}</td></tr>`;
  return html`<${Dialog} title="Keys" onClose=${() => { helpOpen.value = false; }}>
    <table class="keys"><tbody>
      ${row(["Ctrl K"], "Search for kinds, objects, namespaces and views")}
      ${row(["/"], "Filter")}
      ${row(["↑ ↓", "j k"], "Move in a table")}
      ${row(["Enter"], "Open the row")}
      ${row(["Esc"], "Close")}
      ${Object.entries(PLACES).map(([key, [title]]) => row(["g", key], title))}
      ${row(["?"], "These keys")}
    </tbody></table>
  </${Dialog}>`;
}
