// A table of any number of rows: only those on the screen are in the document.
//
// Rows have one height. Keys: arrows, j and k, Page Up and Down, Home and End move; Enter opens.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor.js";

const HEIGHT = 30;
const MORE = 8;

/**
 * `columns`: `{name, width, title}`; `count` rows; `cell(row, column)`; `key(row)`; `open(row)`; `href(row)`: a link, or nothing; `sort`:
 * `{column, down}`, where `onSort(column)` is given.
 */
export function VirtualTable({ label, columns, count, cell, rowKey, open, href, sort, onSort, row: rowClass }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [at, setAt] = useState(-1);
  useLayoutEffect(() => {
    const element = box.current;
    const measure = () => setView({ top: element.scrollTop, height: element.clientHeight });
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useEffect(() => { if (at >= count) setAt(count - 1); }, [count]);
  const first = Math.max(0, Math.floor(view.top / HEIGHT) - MORE);
  const last = Math.min(count, Math.ceil((view.top + view.height) / HEIGHT) + MORE);
  const page = Math.max(1, Math.floor(view.height / HEIGHT) - 2);
  const move = (to) => {
    const row = Math.max(0, Math.min(count - 1, to));
    setAt(row);
    const element = box.current;
    const top = row * HEIGHT;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + 2 * HEIGHT > element.scrollTop + element.clientHeight) element.scrollTop = top + 2 * HEIGHT - element.clientHeight;
  };
  const onKey = (event) => {
    if (event.target !== box.current || event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page };
    if (event.key in steps) move(at + steps[event.key]);
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(count - 1);
    else if (event.key === "Enter" && at >= 0) open(at);
    else return;
    event.preventDefault();
  };
  const template = columns.map((c) => c.width).join(" ");
  const rows = [];
  for (let row = first; row < last; row++) {
    rows.push(html`<div role="row" key=${rowKey(row)} aria-rowindex=${row + 2} class=${`tr ${row === at ? "at" : ""} ${rowClass?.(row) ?? ""}`}
      style=${{ transform: `translateY(${row * HEIGHT}px)`, gridTemplateColumns: template }}
      onClick=${(e) => { if (!e.target.closest("a,button")) { setAt(row); open(row); } }}>
      ${columns.map((column, i) => html`<div role="cell" key=${column.name} class=${column.number ? "number" : ""}>
        ${i === 0 && href(row) ? html`<a tabindex="-1" href=${href(row)}>${cell(row, column)}</a>` : cell(row, column)}</div>`)}
    </div>`);
  }
  const marker = (column) => (sort?.column === column.name ? (sort.down ? " ▾" : " ▴") : "");
  return html`<div class="table" role="table" aria-label=${label} aria-rowcount=${count + 1} ref=${box} tabindex="0"
      onScroll=${(e) => setView({ top: e.currentTarget.scrollTop, height: e.currentTarget.clientHeight })} onKeyDown=${onKey}>
    <div class="thead" role="rowgroup"><div role="row" class="tr" aria-rowindex="1" style=${{ gridTemplateColumns: template }}>
      ${columns.map((column) => html`<div role="columnheader" key=${column.name} class=${column.number ? "number" : ""} title=${column.title}
          aria-sort=${!onSort ? undefined : sort?.column === column.name ? (sort.down ? "descending" : "ascending") : "none"}>
        ${onSort ? html`<button class="plain" onClick=${() => onSort(column)}>${column.name}${marker(column)}</button>` : column.name}</div>`)}
    </div></div>
    <div class="tbody" role="rowgroup" style=${{ height: `${count * HEIGHT}px` }}>${rows}</div>
  </div>`;
}
