// Ownership and references as a graph, and as a list beside it; what is healthy is collapsed.
import { dagre, html, useMemo, useState } from "../vendor.js";
import { find, namespace, objectLink } from "../kinds.js";
import { around, collapse, idOf, relations } from "../relations.js";
import { Empty, Failure, Loading, useLoad } from "../ui.js";

const [WIDTH, HEIGHT] = [216, 42];
const MOST_NODES = 250;

function layoutOf({ Graph, layout }, shown) {
  const g = new Graph({ multigraph: true });
  g.setGraph({ rankdir: "LR", nodesep: 12, ranksep: 44, marginx: 12, marginy: 12 });
  g.setDefaultEdgeLabel(() => ({}));
  for (const id of shown.nodes.keys()) g.setNode(id, { width: WIDTH, height: HEIGHT });
  shown.edges.forEach((e, i) => g.setEdge(e.from, e.to, {}, `${i}`));
  layout(g);
  const size = g.graph();
  return {
    width: size.width ?? WIDTH, height: size.height ?? HEIGHT,
    nodes: [...shown.nodes.values()].map((node) => ({ ...node, ...g.node(node.id) })),
    edges: shown.edges.map((e, i) => ({ ...e, points: g.edge(e.from, e.to, `${i}`)?.points ?? [] })),
  };
}

const curve = (points) => points.map((p, i) => `${i ? "L" : "M"}${p.x.toFixed(1)} ${p.y.toFixed(1)}`).join("");
const clip = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const linkOf = (node) => objectLink(node.resource, node.object.metadata.namespace ?? "", node.object.metadata.name);
const titleOf = (node) => (node.members ? `${node.members.length} healthy` : node.object.metadata.name);

function Drawing({ plan, at, hover, setHover }) {
  const near = hover ? new Set(plan.edges.filter((e) => e.from === hover || e.to === hover).flatMap((e) => [e.from, e.to])) : null;
  return html`<svg class=${`graph ${near ? "hovered" : ""}`} width=${plan.width} height=${plan.height} viewBox=${`0 0 ${plan.width} ${plan.height}`} role="group" aria-label="Graph of objects">
    ${plan.edges.map((e) => html`<g key=${`${e.from}${e.to}${e.kind}`} class=${`edge ${e.kind === "owns" ? "" : "reference"} ${near && (e.from === hover || e.to === hover) ? "near" : ""}`}>
      <path d=${curve(e.points)} /><title>${e.kind}</title></g>`)}
    ${plan.nodes.map((n) => html`<g key=${n.id} class=${`node ${n.trouble ? "bad" : ""} ${n.id === at ? "at" : ""} ${near?.has(n.id) ? "near" : ""}`} transform=${`translate(${n.x - WIDTH / 2} ${n.y - HEIGHT / 2})`}
        onMouseEnter=${() => setHover(n.id)} onMouseLeave=${() => setHover("")}>
      <a href=${linkOf(n)} onFocus=${() => setHover(n.id)} onBlur=${() => setHover("")}>
        <title>${n.trouble || titleOf(n)}</title>
        ${n.members && html`<rect class="behind" x="4" y="4" width=${WIDTH} height=${HEIGHT} rx="7" />`}
        <rect width=${WIDTH} height=${HEIGHT} rx="7" />
        <text class="kind" x="11" y="16">${n.resource.kind}${n.trouble ? ` · ${clip(n.trouble, 20)}` : ""}</text><text x="11" y="33">${clip(titleOf(n), 24)}</text>
      </a></g>`)}
  </svg>`;
}

/** The list says the same: roots, and below each what it leads to. */
function Outline({ shown, hover, setHover }) {
  const below = new Map(), above = new Set();
  for (const e of shown.edges) {
    (below.get(e.from) ?? below.set(e.from, []).get(e.from)).push(e);
    above.add(e.to);
  }
  const seen = new Set();
  const item = (node, kind, depth) => {
    const again = seen.has(node.id);
    seen.add(node.id);
    return html`<li key=${`${node.id}/${kind}`}><a href=${linkOf(node)} class=${`${node.trouble ? "trouble" : ""} ${hover === node.id ? "near" : ""}`} onMouseEnter=${() => setHover(node.id)} onMouseLeave=${() => setHover("")}>
      <small>${kind && `${kind} `}${node.resource.kind}</small> ${titleOf(node)}${node.trouble && html`<em>${node.trouble}</em>`}</a>
      ${!again && depth < 6 && below.has(node.id) && html`<ul>${below.get(node.id).map((e) => item(shown.nodes.get(e.to), e.kind === "owns" ? "" : e.kind, depth + 1))}</ul>`}</li>`;
  };
  const roots = [...shown.nodes.values()].filter((n) => !above.has(n.id));
  roots.sort((a, b) => Boolean(b.trouble) - Boolean(a.trouble) || a.resource.kind.localeCompare(b.resource.kind));
  const rest = () => [...shown.nodes.values()].filter((n) => !seen.has(n.id));
  return html`<ul class="outline" aria-label="Objects">${roots.map((n) => item(n, "", 0))}${rest().map((n) => item(n, "", 0))}</ul>`;
}

export function Graph({ start, ns }) {
  const of = start ? start.object.metadata.namespace ?? "" : ns;
  const { value, error, again } = useLoad(async (signal) => ({ all: await relations(of, signal), lib: await dagre() }), [of, start?.object.metadata.uid]);
  const [whole, setWhole] = useState(false);
  const [hover, setHover] = useState("");
  const at = start ? idOf(start.resource, of, start.object.metadata.name) : "";
  const shown = useMemo(() => {
    if (!value) return null;
    let part = value.all;
    if (start && !part.nodes.has(at)) part.nodes.set(at, { id: at, resource: start.resource, object: start.object, trouble: "" });
    if (at) part = around(part, at);
    return whole ? part : collapse(part, at);
  }, [value, whole, at]);
  const plan = useMemo(() => (shown && shown.nodes.size <= MOST_NODES ? layoutOf(value.lib, shown) : null), [shown]);
  if (start && !start.object.metadata.namespace) return html`<${Empty}>Relations are shown within a namespace, and this object is in none.</${Empty}>`;
  if (error) return html`<${Failure} error=${error} again=${again} />`;
  if (!shown) return html`<${Loading} what="Reading what is connected" />`;
  return html`<div class="bar"><span class="count" role="status">${shown.nodes.size} of ${value.all.nodes.size} objects</span>
      <label class="check"><input type="checkbox" checked=${whole} onChange=${(e) => setWhole(e.currentTarget.checked)} />Healthy ones each by itself</label>
      <span class="grow"></span><span class="legend"><i class="solid"></i>owns<i class="dotted"></i>refers to</span><button onClick=${again}>Read anew</button></div>
    ${shown.gaps.length > 0 && html`<p class="quiet">${shown.gaps.join("; ")}</p>`}
    ${shown.nodes.size === 0
      ? html`<${Empty}>Nothing is connected here.</${Empty}>`
      : html`<div class="split graphs"><div class="canvas" tabindex="0" role="region" aria-label="Graph">${plan
        ? html`<${Drawing} plan=${plan} at=${at} hover=${hover} setHover=${setHover} />`
        : html`<${Empty}>These are too many to draw (${shown.nodes.size}). The list has them all.</${Empty}>`}</div>
        <nav class="side" tabindex="0" aria-label="The same as a list"><${Outline} shown=${shown} hover=${hover} setHover=${setHover} /></nav></div>`}`;
}

export function GraphView() {
  const ns = namespace.value || "default";
  return html`<div class="page fill"><div class="bar"><h1>Graph</h1><span class="quiet">of ${ns}</span></div>
    ${find("", "pods") && html`<${Graph} key=${ns} ns=${ns} />`}</div>`;
}
