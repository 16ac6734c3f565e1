// Parts of the console that need no browser: differences, positions in YAML, quantities, rules of RBAC.
import { check, equal, holds } from "./check.mjs";
import { around, changes, isNewer, lines, ownersOf } from "../../crates/console/web/diff.js";
import { pathAt } from "../../crates/console/web/schema.js";

globalThis.document ??= { visibilityState: "hidden" };
const { allows, refusalText } = await import("../../crates/console/web/views/access.js");
const { quantity } = await import("../../crates/console/web/views/metrics.js");
const { age } = await import("../../crates/console/web/ui.js");
const { derived, ofRevision, Tracks } = await import("../../crates/console/web/tracks.js");

// The same numbers in each run.
let state = 7;
const random = (n) => { state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff; return (state >> 8) % n; };

/** A track of an object of a kind, made in `tracks`. */
const trackOf = (tracks, name) => tracks.of({ group: "", plural: "pods", kind: "Pod" }, "shop", name);
const wrong = { text: "it crashes", bad: true };
const entry = (revision, change, problem = null) => ({ revision, time: revision * 1000, change, user: "", manager: "", verb: "", problem });
const recorded = (revision, change, user) => ofRevision({ revision: String(revision), time: new Date(revision * 1000).toISOString(), change, user, state: {} }, () => null);

async function unitsOfTracks() {
  await check("*tracks: the state at a time, and what the history adds to what watches told", async () => {
    const tracks = new Tracks();
    const track = trackOf(tracks, "a");
    for (const e of [entry(2, "Created"), entry(4, "Modified", wrong), entry(5, "Modified", wrong), entry(6, "Modified"), entry(8, "Deleted")]) tracks.add(track, e);
    const at = (second) => { const s = tracks.state(second * 1000); return [s.objects.length, s.unhealthy.length]; };
    equal([1, 2, 4, 5, 6, 8, 9].map(at), [[0, 0], [1, 0], [1, 1], [1, 1], [1, 0], [0, 0], [0, 0]], "objects, and unhealthy ones");
    equal(tracks.changes().map((c) => c.turn), ["", "good", "", "bad", ""], "turns, the newest first");
    // Revision 5 is not in the history: it was a heartbeat.
    tracks.merge(track, [recorded(2, "Created", "ann"), recorded(4, "Modified", "bob"), recorded(6, "Modified", "cyd")]);
    equal(track.entries.map((e) => [e.revision, e.user]), [[2, "ann"], [4, "bob"], [6, "cyd"], [8, ""]], "joined");
    equal(track.entries[1].problem, wrong, "what was wrong is kept where the history says nothing of it");
    equal(tracks.count, 4, "entries");
  });
  await check("*tracks: metadata stands in for a history, and goes when there is one", async () => {
    const metadata = { resourceVersion: "9", creationTimestamp: "2026-01-01T00:00:00Z", managedFields: [
      { manager: "m", operation: "Apply", time: "2026-01-01T00:00:00Z" }, { manager: "n", operation: "Update", time: "2026-01-01T00:01:00Z" }] };
    const tracks = new Tracks();
    const track = trackOf(tracks, "a");
    tracks.set(track, derived({ metadata }, wrong));
    equal(track.entries.map((e) => [e.change, e.manager, e.problem]), [["Created", "m", null], ["Modified", "n", wrong]], "derived");
    tracks.merge(track, [recorded(9, "Modified", "bob")]);
    equal(track.entries.map((e) => e.user), ["bob"], "of the history");
    track.created = 1000;
    equal([tracks.state(999).objects.length, tracks.state(2000).objects.length], [0, 1], "it was there before what is kept of it");
  });
  await check("*tracks: a history since a time replaces what metadata says of then, and nothing from before", async () => {
    const metadata = { resourceVersion: "9", creationTimestamp: "2026-01-01T00:00:00Z", managedFields: [{ manager: "n", operation: "Update", time: "2026-01-01T00:10:00Z" }] };
    const [created, since] = [new Date("2026-01-01T00:00:00Z").getTime(), new Date("2026-01-01T00:05:00Z").getTime()];
    const tracks = new Tracks();
    const [changed, beats] = ["a", "b"].map((name) => Object.assign(trackOf(tracks, name), { created }));
    for (const track of [changed, beats]) tracks.set(track, derived({ metadata }, wrong));
    tracks.merge(changed, [{ ...recorded(9, "Modified", "bob"), time: since + 60_000 }], since);
    tracks.settle(since);
    equal(changed.entries.map((e) => [e.change, e.user]), [["Created", ""], ["Modified", "bob"]], "of the history");
    equal(beats.entries.map((e) => [e.change, e.time]), [["Created", created], ["Former", since]], "a heartbeat is no change");
    equal(tracks.state(since + 1).unhealthy.map((o) => o.track.name), ["b"], "what was wrong before, and has not changed");
  });
  await check("*tracks are bounded: the oldest entries go, the state stays", async () => {
    const tracks = new Tracks({ tracks: 3, entries: 100 });
    for (let i = 0; i < 60; i++) for (const name of ["a", "b", "c"]) tracks.add(trackOf(tracks, name), entry(i + 1, i ? "Modified" : "Created"));
    holds(tracks.count <= 100, `${tracks.count} entries`);
    equal(tracks.count, [...tracks.all.values()].reduce((n, t) => n + t.entries.length, 0), "the count");
    holds(tracks.floor > 0 && tracks.state(tracks.floor).objects.length === 3, "all objects at the floor");
    equal([trackOf(tracks, "d"), tracks.refused], [null, 1], "no room");
    tracks.add(trackOf(tracks, "b"), entry(99, "Deleted"));
    holds(trackOf(tracks, "d") !== null && tracks.all.size === 3, "what is gone makes room");
  });
}

export async function units() {
  await unitsOfTracks();
  await check("*a difference has both texts in it, and no more lines than both", async () => {
    for (let round = 0; round < 500; round++) {
      const text = () => Array.from({ length: random(12) }, () => "abcd"[random(4)]).join("\n");
      const [a, b] = [text(), text()];
      const all = lines(a, b);
      equal(all.filter((l) => l.kind !== "+").map((l) => l.text).join("\n"), a, "before");
      equal(all.filter((l) => l.kind !== "-").map((l) => l.text).join("\n"), b, "after");
      holds(a !== b || all.every((l) => l.kind === " "), "equal texts differ");
    }
    equal(around(lines("1\n2\n3\n4\n5\n6\n7\n8\n9", "1\n2\n3\n4\nfive\n6\n7\n8\n9"), 1).map((l) => l && l.kind + l.text), [null, " 4", "-5", "+five", " 6", null]);
  });
  await check("*changes of an object are a patch and the paths that were removed", async () => {
    const before = { metadata: { name: "a", labels: { x: "1", y: "2" } }, spec: { list: [1, 2], same: { deep: true } } };
    const after = { metadata: { name: "a", labels: { x: "3" } }, spec: { list: [1], same: { deep: true }, more: null } };
    equal(changes(before, after), { patch: { metadata: { labels: { x: "3" } }, spec: { list: [1], more: null } }, removed: [["metadata", "labels", "y"]] });
    const object = { metadata: { managedFields: [{ manager: "m", fieldsV1: { "f:spec": { "f:a": {} } } }, { manager: "n", fieldsV1: { "f:spec": { "f:b": {} } } }] } };
    equal([ownersOf(object, ["spec", "a"]), ownersOf(object, ["spec"]), ownersOf(object, ["spec", "c"])], [["m"], ["m", "n"], []]);
  });
  await check("*a later version is one with a greater number", () => {
    const at = (resourceVersion) => ({ metadata: { resourceVersion } });
    equal([["9", "10"], ["10", "9"], ["12", "12"], ["13", "12"]].map(([a, b]) => isNewer(at(a), at(b))), [false, true, false, true], "later");
  });
  await check("*the path of keys at a position in YAML", async () => {
    const at = (text) => { const found = pathAt(text.replace("|", ""), text.indexOf("|")); return `${found.path.join(".")}${found.value ? "=" : "?"}${found.word}`; };
    equal(at("apiVersion: v1\nki|"), "?ki");
    equal(at("spec:\n  rep|"), "spec?rep");
    equal(at("spec:\n  type: Clu|"), "spec.type=Clu");
    equal(at("spec:\n  template:\n    spec:\n      containers:\n        - name: a\n          ima|"), "spec.template.spec.containers?ima");
    equal(at("spec:\n  template:\n    spec:\n      containers:\n      - name: a\n        ima|"), "spec.template.spec.containers?ima");
    equal(at("spec:\n  containers:\n    - na|"), "spec.containers?na");
    equal(at("spec:\n  containers:\n  - na|"), "spec.containers?na");
    equal(at("metadata:\n  labels:\n    a: b\nspec:\n  |"), "spec?");
    equal(at("spec:\n  containers:\n    - name: a\n      resources:\n        limits:\n          cpu: 1\n    - name: b\n      env:\n        - name: X\n          val|"), "spec.containers.env?val");
  });
  await check("*quantities, ages, rules and refusals", async () => {
    equal(["100m", "2", "1Ki", "1.5G", "4u", ""].map(quantity), [0.1, 2, 1024, 1.5e9, 4e-6, 0]);
    const now = Date.parse("2026-01-02T00:00:00Z");
    equal(["2026-01-01T23:59:01Z", "2026-01-01T23:55:30Z", "2026-01-01T18:30:00Z", "2025-12-01T00:00:00Z"].map((t) => age(t, now)), ["59s", "4m30s", "5h30m", "32d"]);
    const q = { verb: "get", group: "", resource: "pods", subresource: "log", name: "a" };
    const rule = (more) => ({ verbs: ["get"], apiGroups: [""], resources: ["pods/log"], ...more });
    equal([rule(), rule({ resources: ["*/log"] }), rule({ resources: ["pods"] }), rule({ resourceNames: ["b"] }), rule({ resourceNames: ["a"] }), rule({ apiGroups: ["*"], verbs: ["*"], resources: ["*"] })].map((r) => allows(r, q)), [true, true, false, false, true, true]);
    equal(refusalText("bob", { verb: "list", group: "apps", resource: "deployments", subresource: "", name: "" }, "shop"), 'deployments.apps is forbidden: User "bob" cannot list resource "deployments" in API group "apps" in the namespace "shop"');
  });
}
