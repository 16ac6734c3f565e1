// Parts of the console that need no browser: differences, positions in YAML, quantities, rules of RBAC.
import { check, equal, holds } from "./check.mjs";
import { around, changes, lines, ownersOf } from "../../crates/console/web/diff.js";
import { pathAt } from "../../crates/console/web/schema.js";

globalThis.document ??= { visibilityState: "hidden" };
const { allows, refusalText } = await import("../../crates/console/web/views/access.js");
const { quantity } = await import("../../crates/console/web/views/metrics.js");
const { age } = await import("../../crates/console/web/ui.js");

// The same numbers in each run.
let state = 7;
const random = (n) => { state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff; return (state >> 8) % n; };

export async function units() {
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
