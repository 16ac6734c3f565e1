// The console in a browser: every view over a real cluster with simulated nodes, what axe finds, many pods, a slow and a broken connection.
//
// KAJI names the program, CHROMIUM the browser; SCREENSHOTS a directory for pictures of each view.
import { mkdir } from "node:fs/promises";
import path from "node:path";
import { axe, browser, check, client, cluster, console_, counts, end, equal, holds, newPage, until } from "./lib.mjs";
import { anvils, objects } from "./fixtures.mjs";
import { changes } from "./changes.mjs";
import { many } from "./many.mjs";
import { network } from "./network.mjs";
import { oidc } from "./oidc.mjs";
import { real } from "./real.mjs";
import { units } from "./units.mjs";

const shots = process.env.SCREENSHOTS;

async function shot(page, name) {
  if (!shots) return;
  await mkdir(shots, { recursive: true });
  await page.mouse.move(600, 750);
  await page.locator(".notes p").first().waitFor({ state: "detached" });
  await page.screenshot({ path: path.join(shots, `${name}.png`) });
}

await units();
const made = await cluster();
const api = await client(await console_(made.kubeconfig));
await check("*the fixtures are there", async () => {
  for (const [url, body] of objects) await api.apply(url, body);
  await until("the custom kind is served", () => api.get("/apis/forge.example.com/v1").catch(() => null));
  for (const [url, body] of anvils) await until("an anvil", () => api.apply(url, body).catch(() => null));
  await until("web runs", async () => (await api.get("/apis/apps/v1/namespaces/shop/deployments/web")).status?.readyReplicas === 3, 90);
  await until("crash has crashed", async () => (await api.get("/api/v1/namespaces/shop/pods?labelSelector=app%3Dcrash")).items
    .some((p) => p.status?.containerStatuses?.[0]?.state?.waiting?.reason === "CrashLoopBackOff"), 90);
});

const chrome = await browser();
const proxy = await console_(made.kubeconfig);
const page = await newPage(chrome);
const go = async (hash) => { await page.evaluate((h) => { location.hash = h; }, hash); };
const text = (selector = "#view") => page.locator(selector).innerText();
const quiet = () => { equal(page.errors, [], "errors of the page"); };

await check("*a link with a code signs in, once", async () => {
  await page.goto(proxy.link);
  await page.getByRole("heading", { name: "Problems" }).waitFor();
  holds(!page.url().includes("code="), "the code is still in the address");
  equal(await page.context().cookies(), [], "cookies");
  const again = await fetch(`${proxy.origin}/kaji-console/session`, { method: "POST", body: proxy.code });
  equal(again.status, 403, "the code once more");
  await page.reload();
  await page.getByRole("heading", { name: "Problems" }).waitFor();
  quiet();
});

await check("problems come first, each with its why", async () => {
  const row = (name) => page.locator(".problem", { hasText: name }).first();
  for (const name of ["too-big", "crash", "missing-image", "wants-secret", "lonely"]) await row(name).waitFor();
  equal(await page.locator(".problem", { has: page.locator("a", { hasText: /^web/ }) }).count(), 0, "what is well");
  await row("too-big").getByRole("button").click();
  await row("too-big").getByText("Insufficient cpu").first().waitFor();
  await row("too-big").locator(".certainty.fix").first().waitFor();
  await axe(page);
  await shot(page, "problems");
  quiet();
});

await check("tables are the server's, also of custom resources", async () => {
  await go("#/k/core/pods");
  await page.locator('[role=columnheader]', { hasText: "Restarts" }).waitFor();
  await page.locator(".tbody [role=row]", { hasText: "too-big" }).waitFor();
  await page.getByRole("searchbox").fill("crash");
  await until("the filter", async () => (await page.locator(".tbody [role=row]").count()) === 2);
  await page.getByRole("searchbox").fill("");
  await axe(page);
  await shot(page, "table");
  await go("#/k/forge.example.com/anvils");
  await page.locator(".tbody [role=row]", { hasText: "large" }).getByText("hard").waitFor();
  await api.apply(anvils[1][0], { ...anvils[1][1], spec: { weight: 111, temper: "soft" } });
  await page.locator(".tbody [role=row]", { hasText: "large" }).getByText("111").waitFor();
  await page.locator('[role=columnheader] button', { hasText: "Weight" }).click();
  await page.locator('[role=columnheader] button', { hasText: "Weight" }).click();
  await until("sorted", async () => (await page.locator(".tbody [role=row]").first().innerText()).includes("large"));
  quiet();
});

await check("keys move in a table and open a row", async () => {
  await go("#/k/core/nodes");
  await page.locator(".tbody [role=row]").nth(2).waitFor();
  await page.locator(".table").focus();
  await page.keyboard.press("j");
  await page.keyboard.press("ArrowDown");
  const name = await page.locator(".tbody .tr.at a").innerText();
  await page.keyboard.press("Enter");
  await page.locator("h1", { hasText: name }).waitFor();
  await page.getByRole("link", { name: "Pods of this node" }).click();
  await page.getByRole("link", { name: /spec.nodeName=/ }).waitFor();
  await until("pods of one node", async () => { const n = await page.locator(".tbody [role=row]").count(); return n > 0 && n < 10; });
  await page.keyboard.press("g");
  await page.keyboard.press("d");
  await page.locator("h1", { hasText: "Deployment" }).waitFor();
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keys" }).waitFor();
  await axe(page);
  await page.keyboard.press("Escape");
  quiet();
});

await check("Ctrl-K finds kinds and objects", async () => {
  await page.keyboard.press("Control+k");
  const box = page.getByRole("combobox", { name: "Search" });
  await box.fill("av");
  await page.getByRole("option", { name: /^Anvil/ }).first().waitFor();
  await box.fill("too-big");
  await page.getByRole("option", { name: /too-big/ }).first().waitFor();
  await axe(page);
  await shot(page, "search");
  await page.keyboard.press("Enter");
  await page.locator("h1", { hasText: "too-big" }).waitFor();
  quiet();
});

await check("an object's page: facts, why, events, access", async () => {
  await page.locator(".causes .certainty.known").first().waitFor();
  await page.getByText("FailedScheduling").first().waitFor();
  await axe(page);
  await shot(page, "object");
  await go("#/o/core/pods/shop/too-big/events");
  await page.getByText("FailedScheduling").first().waitFor();
  await axe(page);
  await go("#/o/core/pods/shop/too-big/access");
  await page.locator("td", { hasText: "alice" }).waitFor();
  await axe(page);
  quiet();
});

await check("the editor: completion by the schema, a dry run's difference, and only then a write", async () => {
  await go("#/o/forge.example.com/anvils/shop/large/yaml");
  await page.locator(".cm-content").waitFor();
  await axe(page);
  const set = (from, to) => page.evaluate(([a, b]) => {
    const view = document.querySelector(".cm-content").cmTile?.view ?? document.querySelector(".cm-content").cmView.view;
    const doc = view.state.doc.toString();
    view.dispatch({ changes: { from: 0, to: doc.length, insert: doc.replace(a, b) } });
  }, [from, to]);
  await page.locator(".cm-line", { hasText: "temper:" }).click();
  await page.keyboard.press("End");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Control+Space");
  await page.locator(".cm-tooltip-autocomplete", { hasText: "weight" }).waitFor();
  await page.keyboard.press("Escape");
  await set(/\n\s*\n/, "\n");
  await set("weight: 111", "weight: 112");
  await page.getByRole("button", { name: "Review the change" }).click();
  await page.locator(".conflicts", { hasText: "fixtures" }).waitFor();
  await page.getByRole("button", { name: "Write it" }).isDisabled().then((off) => holds(off, "a conflict is written without a confirmation"));
  // Not check(), which looks at the box afterwards: it goes with the answer.
  await page.locator(".conflicts input").click();
  await page.locator(".diff .plus", { hasText: "weight: 112" }).waitFor();
  await axe(page);
  await shot(page, "editor");
  await page.getByRole("button", { name: "Write it" }).click();
  await until("the write", async () => (await api.get(anvils[1][0])).spec.weight === 112);
  await page.getByRole("button", { name: "Write it" }).waitFor({ state: "detached" });
  await set(/ *temper: .*\n/, "");
  await page.getByRole("button", { name: "Review the change" }).click();
  await page.locator(".conflicts", { hasText: ".spec.temper" }).waitFor();
  await page.locator(".conflicts input").check();
  await page.getByRole("button", { name: "Write it" }).click();
  await until("the removal", async () => (await api.get(anvils[1][0])).spec.temper === undefined);
  quiet();
});

const kept = await api.get("/apis/history.kaji.dev/v1alpha1").catch(() => null);
if (kept) await check("the history of an object, revision by revision", async () => {
  await go("#/o/forge.example.com/anvils/shop/large/history");
  const scrubber = page.getByRole("slider", { name: "Revision" });
  await until("all revisions", async () => (await page.locator(".revisions li").count()) >= 4);
  await page.locator(".diff .minus", { hasText: "temper: soft" }).waitFor();
  await scrubber.focus();
  await page.keyboard.press("ArrowLeft");
  await page.locator(".diff .plus", { hasText: "weight: 112" }).waitFor();
  await page.locator(".facts dd", { hasText: "kaji-console" }).first().waitFor();
  await axe(page);
  await shot(page, "history");
  await page.getByLabel("The whole object").check();
  await page.locator(".diff", { hasText: "apiVersion: forge.example.com/v1" }).waitFor();
  quiet();
});

await check("objects are created after a try", async () => {
  await go("#/new");
  await page.locator(".cm-content").waitFor();
  await page.getByRole("button", { name: "Try" }).click();
  await page.getByText("would be written").waitFor();
  await axe(page);
  await page.getByRole("button", { name: "Write" }).click();
  await page.getByRole("link", { name: "Open" }).click();
  await page.locator("h1", { hasText: "web" }).waitFor();
  await page.getByRole("button", { name: "Delete" }).click();
  await axe(page);
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await until("the deletion", () => api.get("/apis/apps/v1/namespaces/default/deployments/web").then(() => false, () => true));
  quiet();
});

await check("the graph shows what is unhealthy, and a list says the same", async () => {
  await page.locator("label.namespace select").selectOption("shop");
  await go("#/graph");
  await page.locator(".graph .node.bad").first().waitFor();
  await page.locator(".graph .node", { hasText: "3 healthy" }).waitFor();
  await page.locator(".outline", { hasText: "front" }).waitFor();
  await page.locator(".outline .trouble", { hasText: "absent" }).first().waitFor();
  await axe(page);
  await shot(page, "graph");
  quiet();
});

await check("the timeline is live, and its scrubber goes back", async () => {
  await go("#/timeline");
  await page.locator(".moments li.warning").first().waitFor();
  await axe(page);
  await page.locator(".bar select").selectOption("600000");
  await shot(page, "timeline");
  await page.getByRole("slider", { name: "Moment" }).focus();
  for (let i = 0; i < 30; i++) await page.keyboard.press("ArrowLeft");
  await page.getByText(/^until /).waitFor();
  quiet();
});

await check("logs of many pods", async () => {
  await go("#/o/apps/deployments/shop/talk/logs");
  await until("four lines", async () => (await page.locator(".log > div", { hasText: /hello|world/ }).count()) >= 4);
  equal(await page.locator(".chip").count(), 2, "pods");
  await page.getByRole("searchbox").fill("wor");
  await until("the filter", async () => (await page.locator(".log > div").count()) === 2);
  await page.getByRole("searchbox").fill("");
  await axe(page);
  await shot(page, "logs");
  await go("#/logs?ns=shop&labels=app%3Dtalk");
  await until("lines by labels", async () => (await page.locator(".log > div", { hasText: "hello" }).count()) >= 2);
  await axe(page);
  quiet();
});

await check("a terminal, by WebSocket", async () => {
  const name = (await api.get("/api/v1/namespaces/shop/pods?labelSelector=app%3Dtalk")).items[0].metadata.name;
  await go(`#/o/core/pods/shop/${name}/terminal`);
  await page.getByLabel("Command").fill("echo over the socket");
  await page.getByRole("button", { name: "Connect" }).click();
  await until("the output", async () => (await page.locator(".screen .xterm-rows, .screen .xterm-accessibility").allInnerTexts()).join().replace(/\u00a0/g, " ").includes("over the socket"));
  await page.getByText("Closed").waitFor();
  await axe(page);
  await shot(page, "terminal");
  quiet();
});

await check("metrics are plotted", async () => {
  await go("#/metrics");
  await page.locator(".plot canvas").nth(1).waitFor();
  await page.locator(".plot", { hasText: "Requests a second" }).waitFor({ timeout: 30_000 });
  await axe(page);
  await shot(page, "metrics");
  quiet();
});

await check("access: subjects that may, and why one may not", async () => {
  await go("#/access");
  await page.getByLabel("Namespace", { exact: true }).last().fill("shop");
  await page.keyboard.press("Tab");
  await page.locator("td", { hasText: "alice" }).waitFor();
  await page.getByLabel("Subject", { exact: true }).fill("alice");
  await page.keyboard.press("Tab");
  await page.locator(".ask select").first().selectOption("delete");
  await page.getByText("It is refused").waitFor();
  await page.locator(".causes").first().waitFor();
  await axe(page);
  await shot(page, "access");
  quiet();
});

await check("dark mode", async () => {
  await page.getByRole("button", { name: "Dark or light" }).click();
  for (const [hash, selector] of [["#/", ".problem"], ["#/k/core/pods", ".tbody [role=row]"], ["#/graph", ".graph .node"], ["#/metrics", ".plot"], ["#/o/core/pods/shop/too-big", ".causes"], ["#/o/core/pods/shop/too-big/yaml", ".cm-line"], ["#/timeline", ".moments li"], ["#/changes", ".changes .tbody [role=row]"], ["#/access", ".verdict"]]) {
    await go(hash);
    await page.locator(selector).first().waitFor();
    await axe(page);
    if (hash === "#/" || hash === "#/graph") await shot(page, hash === "#/" ? "dark" : "dark-graph");
  }
  quiet();
});

await check("a token signs in at the API server itself, which explains, and says no more than its user may see", async () => {
  const token = await api.request("POST", "/api/v1/namespaces/shop/serviceaccounts/visitor/token", { apiVersion: "authentication.k8s.io/v1", kind: "TokenRequest", spec: {} });
  const direct = await newPage(chrome);
  await direct.goto(`${made.url}/console`);
  await direct.getByLabel("Bearer token").waitFor();
  await axe(direct);
  await shot(direct, "signin");
  await direct.getByLabel("Bearer token").fill("wrong");
  await direct.getByRole("button", { name: "Sign in" }).click();
  await direct.getByRole("alert").waitFor();
  await direct.getByLabel("Bearer token").fill(token.status.token);
  await direct.getByRole("button", { name: "Sign in" }).click();
  await direct.locator(".user", { hasText: "system:serviceaccount:shop:visitor" }).waitFor();
  await direct.evaluate(() => { location.hash = "#/k/core/secrets"; });
  await direct.getByText("Not allowed").waitFor();
  await direct.evaluate(() => { sessionStorage.setItem("kaji.namespace", "shop"); location.hash = "#/k/core/pods"; location.reload(); });
  await direct.locator(".tbody [role=row]", { hasText: "too-big" }).waitFor();
  await direct.evaluate(() => { location.hash = "#/o/core/pods/shop/too-big"; });
  await direct.locator(".causes .cause", { hasText: "it has no node" }).waitFor();
  await direct.getByText(/could not be read: .*cannot list resource "nodes"/).waitFor();
  await axe(direct);
  await direct.evaluate(() => { location.hash = "#/"; });
  const row = direct.locator(".problem", { hasText: "too-big" }).first();
  await row.getByRole("button").click();
  await row.locator(".causes .certainty.known", { hasText: "known" }).first().waitFor();
  await axe(direct);
  // Another server has no such path: the page shows events, and the command.
  await direct.route("**/kaji/why*", (route) => route.fulfill({ status: 404, body: "404 page not found\n" }));
  await direct.evaluate(() => { location.hash = "#/o/core/pods/shop/too-big"; location.reload(); });
  await direct.getByText("kaji why pods/too-big").waitFor();
  await axe(direct);
  equal(direct.errors, [], "errors of the page");
  await direct.context().close();
});

await changes(chrome, made, api, shot);
await oidc(chrome, made);
await many(chrome, made, shot);
await network(chrome, made);
await real(chrome);

await chrome.close();
await end();
await made.remove();
const { passed, failed } = counts();
console.log(`${passed} passed, ${failed.length} failed`);
process.exit(failed.length ? 1 : 0);
