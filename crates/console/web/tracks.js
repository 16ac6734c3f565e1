// What is known of the changes of objects: a track an object, entries in the order of revisions, and the state at a time.
//
// Invariants: nothing is asked of a server here; an entry has no object in it, only what was wrong with it; there are at most
// MOST_TRACKS tracks and MOST_ENTRIES entries: the oldest are left out, and `floor` says from when on they are whole.

export const MOST_TRACKS = 6000;
export const MOST_ENTRIES = 20_000;
const DERIVED_WITHIN = 1500;

const millis = (text) => new Date(text).getTime();
export const keyOf = (resource, namespace, name) => `${resource.group}/${resource.plural}/${namespace ?? ""}/${name}`;

/** When something last wrote an object, as far as its metadata says it: milliseconds. */
export const activity = (object) => (object.metadata.managedFields ?? [])
  .reduce((latest, f) => Math.max(latest, millis(f.time) || 0), millis(object.metadata.creationTimestamp) || 0);

/** The manager of the latest write, as far as the metadata says it. */
export function latestManager(object) {
  const fields = (object.metadata?.managedFields ?? []).filter((f) => f.time);
  return fields.reduce((a, b) => (a && millis(a.time) > millis(b.time) ? a : b), null)?.manager ?? "";
}

/** What metadata alone tells: the creation, and the last write of each manager. */
export function derived(object, problem) {
  const created = millis(object.metadata.creationTimestamp);
  const revision = Number(object.metadata.resourceVersion) || 0;
  const writes = (object.metadata.managedFields ?? []).filter((f) => f.time)
    .map((f) => ({ time: millis(f.time), manager: f.manager ?? "", verb: f.operation === "Apply" ? "apply" : "", subresource: f.subresource ?? "" }))
    .sort((a, b) => a.time - b.time);
  const first = writes[0] && writes[0].time - created < DERIVED_WITHIN ? writes.shift() : null;
  const entries = [{ time: created, change: "Created", manager: first?.manager ?? "", verb: first?.verb ?? "", subresource: "" },
    ...writes.map((w) => ({ ...w, change: "Modified" }))];
  return entries.map((e, i) => ({ ...e, revision: revision - (entries.length - 1 - i) / 1000, user: "", problem: i === entries.length - 1 ? problem : null, derived: true }));
}

/** An entry of a Revision, by the verdict on its state; `null` for what is no change of the object. */
export function ofRevision(revision, verdict) {
  const problem = revision.state && revision.change !== "Deleted" ? verdict(revision.state, millis(revision.time)) : null;
  const time = revision.change === "Former" && revision.state ? Math.min(activity(revision.state) || millis(revision.time), millis(revision.time)) : millis(revision.time);
  return {
    revision: Number(revision.revision), time, change: revision.change, user: revision.user ?? "", manager: revision.fieldManager ?? "",
    verb: revision.verb ?? "", subresource: revision.subresource ?? "", message: revision.message ?? "", problem, kept: true,
  };
}

/** The same of the rows of a Table. */
export function ofRows(table) {
  const at = Object.fromEntries((table.columnDefinitions ?? []).map((c, i) => [c.name, i]));
  return (table.rows ?? []).map(({ cells }) => {
    const of = (name) => String(cells[at[name]] ?? "");
    return {
      revision: Number(of("Revision")), time: millis(of("Time")), change: of("Change"), user: of("User"), manager: of("Manager"),
      verb: of("Verb"), subresource: "", message: of("Message"), problem: null, kept: true,
    };
  });
}

/** The last entry at a time: its index, or -1. */
function lastAt(entries, time) {
  let low = 0, high = entries.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (entries[middle].time <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

export class Tracks {
  constructor(limits = {}) {
    this.limits = { tracks: MOST_TRACKS, entries: MOST_ENTRIES, ...limits };
    this.all = new Map();
    this.count = 0;
    /** Before it changes are left out, milliseconds; 0 while none are. */
    this.floor = 0;
    /** Objects for which there was no room. */
    this.refused = 0;
    this.gaps = new Map();
  }

  /** The track of an object, made if there is room; `null` if there is none. */
  of(resource, namespace, name) {
    const key = keyOf(resource, namespace, name);
    const known = this.all.get(key);
    if (known) return known;
    if (this.all.size >= this.limits.tracks && !this.forgetGone()) {
      this.refused++;
      return null;
    }
    const track = { key, resource, namespace: namespace ?? "", name, created: 0, seen: 0, print: "", token: "", pages: 0, entries: [] };
    this.all.set(key, track);
    return track;
  }

  forgetGone() {
    let oldest = null;
    for (const track of this.all.values()) {
      const last = track.entries.at(-1);
      if (last?.change === "Deleted" && (!oldest || last.time < oldest.entries.at(-1).time)) oldest = track;
    }
    if (oldest) {
      this.floor = Math.max(this.floor, oldest.entries.at(-1).time);
      this.drop(oldest);
    }
    return oldest !== null;
  }

  drop(track) {
    this.count -= track.entries.length;
    this.all.delete(track.key);
  }

  set(track, entries) {
    this.count += entries.length - track.entries.length;
    track.entries = entries;
    if (this.count > this.limits.entries) this.trim();
  }

  /** Adds what a watch told. */
  add(track, entry) {
    this.set(track, [...track.entries, entry]);
  }

  /** Joins what the history has since a time: it knows more of what a watch told, and what it left out was a heartbeat. */
  merge(track, records, since = 0) {
    const known = new Map(track.entries.map((e) => [e.revision, e]));
    let last = 0;
    for (const record of records) {
      if (record.change === "Gap" || record.change === "Progress") {
        if (record.change === "Gap") this.gaps.set(record.revision, record);
        continue;
      }
      last = Math.max(last, record.revision);
      const old = known.get(record.revision);
      known.set(record.revision, { ...record, problem: record.problem ?? old?.problem ?? null });
    }
    if (!last) return;
    const entries = [...known.values()].filter((e) => e.kept || (e.derived ? e.time < since : e.revision > last));
    entries.sort((a, b) => a.revision - b.revision);
    // Times are those of the recording, moments after each write: they grow with revisions.
    for (let i = entries.length - 2; i >= 0; i--) if (entries[i].time > entries[i + 1].time) entries[i] = { ...entries[i], time: entries[i + 1].time };
    this.set(track, entries);
  }

  /** What metadata alone says was changed since a time from which on the history is whole were heartbeats: the state was there before. */
  settle(since) {
    for (const track of this.all.values()) {
      if (track.created >= since || track.entries.some((e) => e.kept)) continue;
      track.entries = track.entries.map((e) => (e.time >= since ? { ...e, time: since, change: "Former" } : e));
    }
  }

  /** Leaves out the oldest entries, but for the last one of each object: it says how the object was from then on. */
  trim() {
    const times = [];
    for (const track of this.all.values()) for (const entry of track.entries) times.push(entry.time);
    times.sort((a, b) => a - b);
    const cut = times[Math.ceil(times.length - this.limits.entries * 0.8)];
    this.floor = Math.max(this.floor, cut);
    let count = 0;
    for (const track of this.all.values()) {
      const from = Math.max(0, lastAt(track.entries, cut));
      if (from > 0) track.entries = track.entries.slice(from);
      count += track.entries.length;
    }
    this.count = count;
  }

  /** The entry that an object was in at a time; `null` when it did not exist. */
  at(track, time) {
    const { entries } = track;
    const index = lastAt(entries, time);
    if (index >= 0) return entries[index].change === "Deleted" || (entries[index].change === "Purged" && !track.created) ? null : entries[index];
    const first = entries[0];
    return track.created && track.created <= time && first?.change !== "Created" ? { revision: 0, time: track.created, change: "Former", problem: null } : null;
  }

  /** All objects that existed at a time: `{objects, unhealthy}` of `{track, entry, gone}`. */
  state(time) {
    const objects = [], unhealthy = [];
    for (const track of this.all.values()) {
      const entry = this.at(track, time);
      if (!entry) continue;
      const one = { track, entry, gone: track.entries.at(-1)?.change === "Deleted" };
      objects.push(one);
      if (entry.problem) unhealthy.push(one);
    }
    unhealthy.sort((a, b) => b.entry.problem.bad - a.entry.problem.bad || (a.track.key < b.track.key ? -1 : 1));
    return { objects, unhealthy };
  }

  /** Every change, the newest first: `{track, entry, turn}`; `turn` is `bad` or `good` where its health turned. */
  changes() {
    const all = [];
    for (const track of this.all.values()) {
      let before = null;
      for (const entry of track.entries) {
        const turn = entry.problem && !before ? "bad" : before && !entry.problem && entry.change !== "Deleted" ? "good" : "";
        before = entry.problem;
        if (entry.change !== "Former") all.push({ track, entry, turn });
      }
    }
    for (const entry of this.gaps.values()) all.push({ track: null, entry, turn: "" });
    return all.sort((a, b) => b.entry.time - a.entry.time || b.entry.revision - a.entry.revision);
  }
}
