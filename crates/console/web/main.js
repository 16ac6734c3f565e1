// The console: its frame, its menu, and the view that the address names.
import { html, render, signal, useEffect, useState } from "./vendor.js";
import { begin, session, signOut } from "./session.js";
import { connection } from "./api.js";
import { discover, discoveryError, kindLink, kinds, namespace, namespaces, isCustom, refreshNamespaces, start, user, version } from "./kinds.js";
import { Failure, Icon, Loading, Notes, now } from "./ui.js";
import { SignIn } from "./signin.js";
import { Palette, paletteOpen } from "./search.js";
import { Help, helpOpen, listenToKeys } from "./keys.js";
import { views } from "./views.js";

const theme = signal(localStorage.getItem("kaji.theme") ?? "");
const route = signal(parse());
const ready = signal(false);

function parse() {
  const [path, search = ""] = location.hash.replace(/^#/, "").split("?");
  const parts = path.split("/").filter(Boolean).map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  return { name: parts[0] ?? "problems", parts: parts.slice(1), query: new URLSearchParams(search) };
}

addEventListener("hashchange", () => {
  route.value = parse();
  document.getElementById("view")?.focus({ preventScroll: true });
});

const MENU = [
  ["problems", "Problems", "alert", "#/"],
  ["timeline", "Timeline", "clock", "#/timeline"],
  ["changes", "Changes", "list", "#/changes"],
  ["graph", "Graph", "graph", "#/graph"],
  ["logs", "Logs", "logs", "#/logs"],
  ["metrics", "Metrics", "chart", "#/metrics"],
  ["access", "Access", "key", "#/access"],
];

const FIRST = ["/nodes", "/namespaces", "/pods", "apps/deployments", "apps/statefulsets", "apps/daemonsets", "batch/jobs",
  "batch/cronjobs", "/services", "networking.k8s.io/ingresses", "/configmaps", "/secrets", "/persistentvolumeclaims"];

function groupsOfKinds() {
  const id = (r) => `${r.group}/${r.plural}`;
  const first = FIRST.map((name) => kinds.value.find((r) => id(r) === name)).filter(Boolean);
  const custom = kinds.value.filter(isCustom);
  const rest = kinds.value.filter((r) => !first.includes(r) && !custom.includes(r));
  return [["Kinds", first], ["Custom resources", custom], ["More kinds", rest]];
}

function Kinds({ at }) {
  const [open, setOpen] = useState(false);
  return groupsOfKinds().map(([title, list]) => list.length > 0 && html`<section key=${title}>
    <h2>${title === "More kinds"
      ? html`<button class="plain fold" aria-expanded=${open} onClick=${() => setOpen(!open)}><${Icon} name="chevron" />${title}</button>`
      : title}</h2>
    ${(title !== "More kinds" || open) && html`<ul>${list.map((r) => html`<li key=${r.group + r.plural}>
      <a href=${kindLink(r)} aria-current=${at === `${r.group || "core"}/${r.plural}` ? "page" : undefined} title=${r.group || "core"}>${r.kind}</a></li>`)}</ul>`}
  </section>`);
}

function Menu() {
  const { name, parts } = route.value;
  return html`<nav class="menu" aria-label="Views">
    <a class="brand" href="#/"><svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="7" /><path d="M8 6h4v9l8-9h5l-8.500 9.300L25.500 26h-5.200l-6.300-8.200L12 20v6H8z" /></svg>Kaji</a>
    <ul class="views">${MENU.map(([id, title, icon, href]) => html`<li key=${id}>
      <a href=${href} aria-current=${name === id ? "page" : undefined}><${Icon} name=${icon} />${title}</a></li>`)}</ul>
    <${Kinds} at=${name === "k" || name === "o" ? `${parts[0]}/${parts[1]}` : ""} />
    <p class="about">${version.value}</p>
  </nav>`;
}

function Namespaces() {
  return html`<label class="namespace"><span class="hidden">Namespace</span>
    <select value=${namespace.value} onChange=${(e) => { namespace.value = e.currentTarget.value; sessionStorage.setItem("kaji.namespace", namespace.value); }}
      onFocus=${() => refreshNamespaces().catch(() => undefined)}>
      <option value="">All namespaces</option>
      ${namespace.value && !namespaces.value.includes(namespace.value) && html`<option value=${namespace.value}>${namespace.value}</option>`}
      ${namespaces.value.map((n) => html`<option key=${n} value=${n}>${n}</option>`)}
    </select></label>`;
}

function switchTheme() {
  const dark = theme.value ? theme.value === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  theme.value = dark ? "light" : "dark";
  localStorage.setItem("kaji.theme", theme.value);
  document.documentElement.dataset.theme = theme.value;
}

function Top() {
  return html`<header class="top">
    <${Namespaces} />
    <button class="find" onClick=${() => { paletteOpen.value = true; }}><${Icon} name="search" /><span>Search</span><kbd>Ctrl K</kbd></button>
    <span class="grow"></span>
    <a class="button" href="#/new"><${Icon} name="plus" />Create</a>
    <span class="user" title=${(user.value?.groups ?? []).join(", ")}>${user.value?.username ?? ""}</span>
    <button class="plain" aria-label="Dark or light" title="Dark or light" onClick=${switchTheme}><${Icon} name="sun" /></button>
    <button class="plain" aria-label="Keys" title="Keys" onClick=${() => { helpOpen.value = true; }}>?</button>
    <button class="plain" aria-label="Sign out" title="Sign out" onClick=${() => { signOut(); location.hash = "#/"; }}><${Icon} name="out" /></button>
  </header>`;
}

function Broken() {
  if (connection.value.online) return null;
  const seconds = Math.max(0, Math.round((now.value - connection.value.since) / 1000));
  return html`<p class="broken" role="status">The server has not answered for ${seconds} s. What is shown is from before; it is asked again.</p>`;
}

function App() {
  const [error, setError] = useState(null);
  const signedIn = session.value !== null;
  const load = () => {
    setError(null);
    start().then(() => { ready.value = true; }, setError);
  };
  useEffect(() => {
    ready.value = false;
    if (signedIn) load();
  }, [signedIn]);
  // Kinds come and go with CustomResourceDefinitions.
  useEffect(() => {
    const timer = setInterval(() => { if (ready.value && document.visibilityState === "visible") discover().catch(() => undefined); }, 60_000);
    return () => clearInterval(timer);
  }, []);
  if (!signedIn) return html`<${SignIn} />`;
  if (error && discoveryError.value) return html`<main class="alone"><${Failure} error=${error} again=${load} /></main>`;
  if (!ready.value) return html`<main class="alone"><${Loading} what="Asking the server what it serves" /></main>`;
  const { name, parts, query } = route.value;
  const View = views[name] ?? views.problems;
  return html`<div class="frame">
    <a class="skip" href="#view" onClick=${(e) => { e.preventDefault(); document.getElementById("view").focus(); }}>To the content</a>
    <${Menu} />
    <div class="right">
      <${Top} />
      <${Broken} />
      <main id="view" tabindex="-1"><${View} key=${`${name}/${parts.slice(0, 4).join("/")}`} parts=${parts} query=${query} /></main>
    </div>
    ${paletteOpen.value && html`<${Palette} />`}
    ${helpOpen.value && html`<${Help} />`}
    <${Notes} />
  </div>`;
}

if (theme.value) document.documentElement.dataset.theme = theme.value;
namespace.value = sessionStorage.getItem("kaji.namespace") ?? "";
listenToKeys();
await begin();
route.value = parse();
render(html`<${App} />`, document.getElementById("app"), undefined);
document.querySelector("#app > .boot")?.remove();
sessionStorage.removeItem("kaji.boot");
