// A collection as the server's Table: read page by page, then followed by a watch.
//
// Invariants: a row is the server's, cells and all, but for ages, which are counted here; changes are shown at most ten times a second;
// of an object's metadata only what is shown is kept, so that 50,000 rows fit a page's memory.
import { signal } from "./vendor.js";
import { getTable, query, watch } from "./api.js";

const PAGE = 500;
const MOST = 200_000;
const SHOWN_EVERY = 120;

function kept(row) {
  const meta = row.object?.metadata ?? {};
  return {
    cells: row.cells,
    uid: meta.uid ?? `${meta.namespace}/${meta.name}`,
    name: meta.name ?? String(row.cells?.[0] ?? ""),
    namespace: meta.namespace ?? "",
    created: meta.creationTimestamp ?? "",
    deleted: meta.deletionTimestamp ?? "",
    labels: meta.labels ?? null,
  };
}

export class Collection {
  constructor(path, options = {}) {
    this.path = query(path, { labelSelector: options.labels, fieldSelector: options.fields });
    this.rows = new Map();
    /** Grows with each change that is to be shown. */
    this.version = signal(0);
    this.columns = signal([]);
    /** `reading`, `live`, `expired` or `failed` */
    this.state = signal("reading");
    this.error = signal(null);
    /** What the server says there is left to read. */
    this.left = signal(0);
    this.stop = new AbortController();
    this.timer = 0;
    this.run();
  }

  close() {
    this.stop.abort(new DOMException("left", "AbortError"));
    clearTimeout(this.timer);
  }

  changed(now = false) {
    if (now) {
      clearTimeout(this.timer);
      this.timer = 0;
      this.version.value++;
    } else if (!this.timer) {
      this.timer = setTimeout(() => this.changed(true), SHOWN_EVERY);
    }
  }

  async run() {
    const signal = this.stop.signal;
    while (!signal.aborted) {
      try {
        const version = await this.read(signal);
        this.state.value = "live";
        this.error.value = null;
        await watch(this.path, { resourceVersion: version, table: true, signal, onEvent: (event) => this.take(event) });
      } catch (error) {
        if (signal.aborted) return;
        if (error.code === 410) continue;
        this.error.value = error;
        this.state.value = "failed";
        this.changed(true);
        return;
      }
    }
  }

  async read(signal) {
    const rows = new Map();
    let next = "", version = "", first = true;
    this.state.value = "reading";
    do {
      const table = await getTable(query(this.path, { limit: PAGE, continue: next }), { signal });
      if (table.columnDefinitions) this.columns.value = table.columnDefinitions;
      for (const row of table.rows ?? []) {
        const one = kept(row);
        rows.set(one.uid, one);
      }
      version = table.metadata?.resourceVersion ?? "";
      next = table.metadata?.continue ?? "";
      this.left.value = table.metadata?.remainingItemCount ?? 0;
      // A collection that is read again is shown when it is whole.
      if (first || this.rows === rows || this.rows.size === 0) this.rows = this.rows.size && this.rows !== rows ? this.rows : rows;
      first = false;
      this.changed();
    } while (next && rows.size < MOST);
    this.rows = rows;
    this.left.value = 0;
    this.changed(true);
    return version;
  }

  take(event) {
    if (event.object?.columnDefinitions) this.columns.value = event.object.columnDefinitions;
    for (const row of event.object?.rows ?? []) {
      const one = kept(row);
      if (event.type === "DELETED") this.rows.delete(one.uid);
      else this.rows.set(one.uid, one);
    }
    this.changed();
  }
}
