// What changes in a namespace, or everywhere: the objects that are there, their histories, and what watches tell, with the user's rights.
//
// - Each kind is listed (metadata alone where objects do not say how they are), and then followed by short watches, a few at a time, since
//   a browser has six connections to `kaji console`: kinds that change are looked at without a pause, others less often. A watch goes on
//   where the one before it ended, so that nothing between them is missed.
// - The server's history (history.kaji.dev) has what changed in the namespace since a time, and then what changes, in one request each.
//   Kinds are then looked at once a minute alone, for those that the history leaves out; the history of one object is read where it was
//   unhealthy already.
// - A server that has only histories of single objects is asked for those of the objects that changed last, and of each that changes;
//   objects that are gone are found by what events are about. Where there is no history, or it may not be read, metadata tells managers
//   and times.
//
// Invariants: what is kept is bounded by Tracks; requests by the constants here; what could not be read is in `gaps`.
import { signal } from "./vendor.js";
import { ApiError, changesSince, get, getTable, listAll, query } from "./api.js";
import { collectionPath, historyKind, ofKind, resources } from "./kinds.js";
import { hasVerdict, verdictOf } from "./health.js";
import { pause } from "./load.js";
import { activity, derived, latestManager, ofRevision, ofRows, Tracks } from "./tracks.js";

const MOST_KINDS = 120;
const MOST_LISTED = 1000;
const MOST_EVENTS = 1000;
const MOST_GONE = 300;
/** Objects with histories that are read before they change. */
const MOST_HISTORIES = 600;
/** Pages of a history, and revisions in each: whole states for kinds that say how they are, rows for others. */
const MOST_PAGES = 20;
const PAGE_OF_STATES = 50;
const PAGE_OF_ROWS = 500;
const LISTERS = 4, FOLLOWERS = 3, READERS = 2;
const WATCHED = 1;
const HOT = 30_000, SOON = 4_000, RARELY = 20_000, SLOWEST = 60_000;
const RECORDED_AFTER = 700, TRIES = 4;
const SHOWN_EVERY = 250;
/** Pages of what changed that are read: where there are more, a shorter time is. */
const MOST_WINDOW_PAGES = 30;
const SHORTEST_WINDOW = 60_000;
const PAGE_OF_CHANGES = 500;
const ASKED_EVERY = 1000;
// The timeline of events shows events; leases are renewed all the time; the others are memories of the server.
const LEFT_OUT = new Set(["/events", "events.k8s.io/events", "coordination.k8s.io/leases"]);
const LEFT_OUT_GROUPS = new Set(["history.kaji.dev", "kaji.dev", "metrics.k8s.io"]);

function kindsToFollow(ns) {
  return resources.value.filter((r) => r.verbs.includes("list") && r.verbs.includes("watch") && (r.namespaced || !ns)
    && !LEFT_OUT.has(`${r.group}/${r.plural}`) && !LEFT_OUT_GROUPS.has(r.group));
}

const CLOCKS = new Set(["resourceVersion", "managedFields", "lastHeartbeatTime", "renewTime"]);

/** A number for an object without what only a clock changes. */
function printOf(object) {
  const text = JSON.stringify(object, (key, value) => (CLOCKS.has(key) ? undefined : value));
  let hash = 2166136261;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 16777619);
  return `${text.length}/${hash}`;
}

export class Journal {
  /** What changed in `span` milliseconds, and what changes. */
  constructor(ns, span) {
    this.ns = ns;
    this.span = span;
    this.tracks = new Tracks();
    /** Grows with each change that is to be shown. */
    this.version = signal(0);
    /** `reading`, `live` or `failed` */
    this.state = signal("reading");
    this.error = signal(null);
    this.notes = new Map();
    this.sources = [];
    // Objects with a history to be read: those that changed are before the others.
    this.fresh = new Set();
    this.waiting = [];
    this.timer = 0;
    /** The server says what changes; up to where it was read, and since when. */
    this.recorded = false;
    this.token = "";
    this.since = 0;
    this.stop = new AbortController();
    this.run();
  }

  close() {
    this.stop.abort(new DOMException("left", "AbortError"));
    clearTimeout(this.timer);
  }

  changed() {
    this.timer ||= setTimeout(() => { this.timer = 0; this.version.value++; }, SHOWN_EVERY);
  }

  /** What is not shown, and why. */
  gaps() {
    const out = [...this.notes.values()];
    if (this.tracks.refused) out.push(`there are more objects than the ${this.tracks.limits.tracks.toLocaleString("en")} that are kept here`);
    if (this.tracks.floor) out.push(`changes before ${new Date(this.tracks.floor).toLocaleString("en-GB")} were left out, for there are too many`);
    return out;
  }

  async run() {
    const { signal } = this.stop;
    try {
      const all = kindsToFollow(this.ns);
      if (all.length > MOST_KINDS) this.notes.set("kinds", `only ${MOST_KINDS} of ${all.length} kinds are followed`);
      this.sources = all.slice(0, MOST_KINDS).map((resource) => ({
        resource, path: collectionPath(resource, this.ns), states: hasVerdict(resource), version: "", due: 0, changedAt: 0, count: 0, tries: 0, off: false, history: true,
      }));
      if (!historyKind()) this.notes.set("history", "this server serves no history: managers and times are those of the metadata, and users are not known");
      const queue = this.sources.values();
      await Promise.all(Array.from({ length: LISTERS }, async () => { for (const source of queue) await this.list(source); }));
      const refused = this.sources.filter((s) => s.off);
      if (refused.length && refused.length === this.sources.length) throw refused[0].refusal;
      this.recorded = historyKind() !== undefined && await this.readRecorded();
      if (!this.recorded) this.plan();
      this.state.value = "live";
      this.changed();
      const times = (count, run) => Array.from({ length: count }, run);
      await Promise.all(this.recorded
        ? [this.followRecorded(), this.readers(), this.followers()]
        : [...times(READERS, () => this.readers()), ...times(FOLLOWERS, () => this.followers()), this.departed()]);
    } catch (error) {
      if (signal.aborted) return;
      this.error.value = error;
      this.state.value = "failed";
      this.stop.abort(error);
    }
  }

  /** Notes what a refusal leaves out; other failures are thrown. */
  refused(error) {
    if (this.stop.signal.aborted || !(error instanceof ApiError) || error.code === 0) throw error;
    if (error.code !== 404) this.notes.set(error.message, error.message);
  }

  verdict(source, object, time) {
    return source.states ? verdictOf(source.resource, object, time) : null;
  }

  async list(source) {
    const { signal } = this.stop;
    try {
      const { items, more, resourceVersion } = await listAll(source.path, { most: MOST_LISTED, signal, metadata: !source.states });
      if (more) this.notes.set(`${source.path}/more`, `of the ${source.resource.plural} that do not change only the first ${MOST_LISTED.toLocaleString("en")} are shown`);
      const there = new Set();
      for (const object of items) {
        const track = this.tracks.of(source.resource, object.metadata.namespace, object.metadata.name);
        if (!track) break;
        there.add(track);
        this.place(source, track, object);
      }
      // What a list has no more, after watches were late, was deleted meanwhile.
      if (source.version && !more) this.vanished(source, there, Number(resourceVersion) || 0);
      source.version = resourceVersion;
      source.count = items.length;
      this.changed();
    } catch (error) {
      this.refused(error);
      source.off = true;
      source.refusal = error;
    }
  }

  place(source, track, object) {
    const revision = Number(object.metadata.resourceVersion) || 0;
    if (revision && revision <= track.seen) return;
    const again = track.seen > 0;
    track.source = source;
    track.seen = revision;
    track.created = new Date(object.metadata.creationTimestamp).getTime();
    track.active = activity(object);
    if (source.states) track.print = printOf(object);
    const problem = this.verdict(source, object, Date.now());
    if (!again) this.tracks.set(track, derived(object, problem));
    else {
      this.tracks.add(track, { revision, time: Date.now(), change: "Modified", user: "", manager: latestManager(object), verb: "", subresource: "", problem });
      this.want(track);
    }
  }

  vanished(source, there, revision) {
    for (const track of this.tracks.all.values()) {
      if (track.source !== source || there.has(track) || track.entries.at(-1)?.change === "Deleted") continue;
      this.tracks.add(track, { revision, time: Date.now(), change: "Deleted", user: "", manager: "", verb: "", subresource: "", problem: null });
      track.seen = revision;
      this.want(track);
    }
  }

  /** Reads what changed in the span; false where the server does not say it, or not to this user. */
  async readRecorded() {
    const { signal } = this.stop;
    let span = this.span;
    this.since = Date.now() - span;
    for (let pages = 1; ; pages++) {
      try {
        if (!await this.readPage()) break;
      } catch (error) {
        if (error instanceof ApiError && error.code === 0 && !signal.aborted) throw error;
        this.refused(error);
        return false;
      }
      if (pages >= MOST_WINDOW_PAGES && span > SHORTEST_WINDOW) {
        [span, pages, this.token] = [span / 4, 0, ""];
        this.since = this.tracks.floor = Date.now() - span;
      }
    }
    this.tracks.settle(this.since);
    this.waiting = [...this.tracks.all.values()].filter((t) => {
      const first = t.entries.find((e) => e.kept);
      return first?.problem && first.change !== "Created";
    }).slice(0, MOST_HISTORIES);
    return true;
  }

  /** Reads a page of what changed; whether there is another. */
  async readPage() {
    const parameters = { sinceTime: new Date(this.since).toISOString(), limit: PAGE_OF_CHANGES, continue: this.token };
    const page = await get(query(collectionPath(historyKind(), this.ns), parameters), { signal: this.stop.signal });
    const found = new Map();
    for (const item of page.items ?? []) {
      const { group = "", resource = "", namespace = "", name = "" } = item.object ?? {};
      if (item.change === "Gap") this.tracks.gaps.set(Number(item.revision), ofRevision(item, () => null));
      const source = this.sources.find((s) => s.resource.plural === resource && s.resource.group === group && !s.off);
      const track = source && this.tracks.of(source.resource, namespace, name);
      if (!track) continue;
      track.source = source;
      track.seen = Math.max(track.seen, Number(item.revision));
      const created = item.state?.metadata?.creationTimestamp;
      if (created) track.created = new Date(created).getTime();
      if (!found.has(track)) found.set(track, []);
      found.get(track).push(ofRevision(item, (object, time) => this.verdict(source, object, time)));
    }
    for (const [track, records] of found) this.tracks.merge(track, records, this.since);
    this.token = page.metadata?.resourceVersion ?? "";
    if (found.size) this.changed();
    return Boolean(page.metadata?.continue);
  }

  /** Asks for what changes. */
  async followRecorded() {
    const { signal } = this.stop;
    for (let tries = 0; ;) {
      await pause(Math.min(SLOWEST, ASKED_EVERY * 2 ** tries), signal);
      if (document.visibilityState !== "visible") continue;
      try {
        while (await this.readPage());
        tries = 0;
      } catch (error) {
        const passes = error instanceof ApiError && (error.code === 0 || error.code === 429 || error.code >= 500);
        if (signal.aborted || !passes) throw error;
        tries++;
      }
    }
  }

  /** The histories that are read first: of the objects that changed last. */
  plan() {
    if (!historyKind()) return;
    const all = [...this.tracks.all.values()].sort((a, b) => (b.active ?? 0) - (a.active ?? 0));
    if (all.length > MOST_HISTORIES) this.notes.set("histories", `of objects that do not change, the history of the ${MOST_HISTORIES} that changed last is read`);
    this.waiting = all.slice(0, MOST_HISTORIES);
  }

  want(track) {
    if (this.recorded || !historyKind() || !track.source.history) return;
    track.due = Date.now() + RECORDED_AFTER;
    track.tries = 0;
    this.fresh.add(track);
  }

  /** One of the readers of histories: what changed comes first. */
  async readers() {
    const { signal } = this.stop;
    for (;;) {
      const at = Date.now();
      let track = null;
      for (const one of this.fresh) if (one.due <= at && !one.reading) { track = one; break; }
      if (track) this.fresh.delete(track);
      else track = this.waiting.shift();
      if (track && !track.reading && track.source?.history) {
        track.reading = true;
        try {
          await this.read(track);
        } finally {
          track.reading = false;
        }
      } else {
        await pause(200, signal);
      }
    }
  }

  /** Reads a history on from the page at which it ended before. */
  async read(track) {
    const { signal } = this.stop;
    const { resource } = track;
    const states = hasVerdict(resource);
    const fields = `object.resource=${resource.plural},object.name=${track.name}${resource.group ? `,object.group=${resource.group}` : ""}`;
    const path = query(collectionPath(historyKind(), track.namespace), { fieldSelector: fields, limit: states ? PAGE_OF_STATES : PAGE_OF_ROWS });
    let last = 0;
    try {
      for (;;) {
        const at = query(path, { continue: track.token });
        const page = states ? await get(at, { signal }) : await getTable(query(at, { includeObject: "None" }), { signal });
        const records = states ? (page.items ?? []).map((r) => ofRevision(r, (object, time) => verdictOf(resource, object, time))) : ofRows(page);
        this.tracks.merge(track, records);
        last = Math.max(last, ...records.map((r) => r.revision));
        const next = page.metadata?.continue;
        if (!next) break;
        if (++track.pages >= MOST_PAGES) {
          this.notes.set(`${track.key}/pages`, `${resource.kind} ${track.name} has more revisions than are read here`);
          break;
        }
        track.token = next;
      }
    } catch (error) {
      if (error instanceof ApiError && error.code === 0) {
        track.due = Date.now() + SOON;
        this.fresh.add(track);
        return;
      }
      this.refused(error);
      if (error.code === 403) track.source.history = false;
    }
    if (track.candidate && !track.entries.length) this.tracks.drop(track);
    // Revisions are recorded moments after their write.
    if (last < track.seen && track.source?.history && (track.tries ?? TRIES) < TRIES) {
      track.tries++;
      track.due = Date.now() + RECORDED_AFTER * 2 ** track.tries;
      this.fresh.add(track);
    }
    this.changed();
  }

  /** Objects that are gone, by the events that are left of them. */
  async departed() {
    if (!historyKind()) return;
    const path = `/api/v1/${this.ns ? `namespaces/${encodeURIComponent(this.ns)}/` : ""}events`;
    try {
      const { items } = await listAll(path, { most: MOST_EVENTS, signal: this.stop.signal });
      let count = 0;
      for (const { involvedObject: of = {} } of items) {
        const resource = of.kind && ofKind(of.apiVersion || "v1", of.kind);
        const source = resource && this.sources.find((s) => s.resource.group === resource.group && s.resource.plural === resource.plural && !s.off);
        if (!source || count >= MOST_GONE || (this.ns && of.namespace !== this.ns)) continue;
        const track = this.tracks.of(resource, resource.namespaced ? of.namespace : "", of.name);
        if (!track || track.entries.length || track.candidate) continue;
        count++;
        track.candidate = true;
        track.source = source;
        this.waiting.push(track);
      }
    } catch (error) {
      this.refused(error);
    }
  }

  /** One of the followers: takes the kind that is due first. */
  async followers() {
    const { signal } = this.stop;
    for (;;) {
      const at = Date.now();
      const source = this.sources.filter((s) => !s.off && !s.busy).reduce((a, b) => (a && a.due <= b.due ? a : b), null);
      if (!source || source.due > at || document.visibilityState !== "visible") {
        await pause(150, signal);
        continue;
      }
      source.busy = true;
      try {
        await this.follow(source);
      } finally {
        source.busy = false;
      }
    }
  }

  async follow(source) {
    try {
      const version = await changesSince(source.path, {
        resourceVersion: source.version, seconds: WATCHED, metadata: !source.states, signal: this.stop.signal, onEvent: (event) => this.take(source, event),
      });
      if (version === "expired") await this.list(source);
      else source.version = version;
      source.tries = 0;
      const pauseFor = this.recorded ? SLOWEST : Date.now() - source.changedAt < HOT ? 0 : source.count ? SOON : RARELY;
      source.due = Date.now() + pauseFor;
    } catch (error) {
      if (this.stop.signal.aborted) throw error;
      source.due = Date.now() + Math.min(SLOWEST, 1000 * 2 ** source.tries++);
      if (error instanceof ApiError && error.code >= 400 && error.code < 500 && error.code !== 429) {
        this.refused(error);
        source.off = true;
      }
    }
  }

  take(source, { type, object }) {
    const track = this.tracks.of(source.resource, object.metadata.namespace, object.metadata.name);
    const revision = Number(object.metadata.resourceVersion) || 0;
    if (!track || revision <= track.seen) return;
    const print = source.states && type !== "DELETED" ? printOf(object) : "";
    const beat = type === "MODIFIED" && print && print === track.print;
    const was = track.entries.at(-1);
    Object.assign(track, { source, seen: revision, print, candidate: false, created: new Date(object.metadata.creationTimestamp).getTime() });
    if (beat) return;
    source.changedAt = Date.now();
    source.count ||= 1;
    const change = type === "DELETED" ? "Deleted" : was && was.change !== "Deleted" ? "Modified" : "Created";
    const problem = change === "Deleted" ? null : this.verdict(source, object, Date.now());
    this.tracks.add(track, { revision, time: Date.now(), change, user: "", manager: change === "Deleted" ? "" : latestManager(object), verb: "", subresource: "", problem });
    this.want(track);
    this.changed();
  }
}
