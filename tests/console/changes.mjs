// The changes of a namespace: what a live timeline of objects shows, its scrubber, its keys, and what a user without rights sees of it.
import { axe, check, console_, equal, holds, newPage, until } from "./lib.mjs";

const DEPLOYMENT = "/apis/apps/v1/namespaces/past/deployments/shown";
const CONFIG = "/api/v1/namespaces/past/configmaps/brief";

const deployment = (image, command) => ({
  apiVersion: "apps/v1", kind: "Deployment", metadata: { name: "shown" },
  spec: { replicas: 1, selector: { matchLabels: { app: "shown" } }, template: { metadata: { labels: { app: "shown" } }, spec: { containers: [{ name: "main", image, command }] } } },
});

const rows = (page, text) => page.getByRole("table", { name: "Changes" }).locator(".tbody [role=row]", { hasText: text });
const state = (page) => page.getByRole("region", { name: "State" });

/** The objects of the test: one that is deleted, one that breaks. */
async function prepare(api) {
  await api.apply("/api/v1/namespaces/past", { apiVersion: "v1", kind: "Namespace", metadata: { name: "past" } });
  await until("the namespace has its account", () => api.get("/api/v1/namespaces/past/serviceaccounts/default").catch(() => null));
  await api.apply(DEPLOYMENT, deployment("app:1"));
  await until("it runs", async () => (await api.get(DEPLOYMENT)).status?.availableReplicas === 1, 60);
}

async function live(page, api) {
  let single = 0;
  page.on("request", (request) => { if (/\/revisions\?.*fieldSelector/.test(request.url())) single++; });
  await page.evaluate(() => { location.hash = "#/changes?ns=past"; });
  await rows(page, "shown").filter({ hasText: "fixtures" }).filter({ hasText: "Created" }).waitFor();
  await api.apply(CONFIG, { apiVersion: "v1", kind: "ConfigMap", metadata: { name: "brief" }, data: { a: "1" } });
  const created = rows(page, "ConfigMap brief").filter({ hasText: "Created" });
  await created.filter({ hasText: "kubernetes-admin" }).filter({ hasText: "fixtures" }).waitFor();
  equal(await created.count(), 1, "rows of one creation");
  await api.request("DELETE", CONFIG);
  await rows(page, "ConfigMap brief").filter({ hasText: "Deleted" }).filter({ hasText: "kubernetes-admin" }).waitFor();
  equal(await created.getByRole("link").count(), 0, "links to what is gone");
  await api.apply(DEPLOYMENT, deployment("nowhere.example/app:404", undefined));
  await state(page).locator(".unhealthy li", { hasText: "Pod" }).waitFor();
  holds((await page.locator(".tbody [role=row]").count()) < 80, "only what is on the screen is in the document");
  equal(single, 0, "requests for the history of one object");
}

async function back(page) {
  const kinds = state(page).locator(".existed");
  equal(await kinds.getByRole("button", { name: "ConfigMap 1" }).count(), 1, "config maps now");
  // By the keyboard: to the row of the creation, and the state then.
  await page.getByRole("searchbox").fill("configmap brief");
  await until("the filter", async () => (await page.locator(".tbody [role=row]").count()) === 2);
  await page.getByRole("table", { name: "Changes" }).focus();
  await page.keyboard.press("End");
  await page.keyboard.press("Enter");
  await page.getByText(/^until /).waitFor();
  await page.getByRole("heading", { name: /^The state at/ }).waitFor();
  const open = kinds.getByRole("button", { name: "ConfigMap 2" });
  await open.click();
  await kinds.locator("li li", { hasText: "brief" }).getByText("gone since").waitFor();
  equal(await state(page).locator(".unhealthy li", { hasText: "Pod" }).count(), 0, "unhealthy pods then");
  await axe(page);
  await page.getByRole("button", { name: "Back to now" }).click();
  await state(page).locator(".unhealthy li", { hasText: "Pod" }).waitFor();
  await kinds.getByRole("button", { name: "ConfigMap 1" }).waitFor();
  await page.getByRole("searchbox").fill("");
  const scrubber = page.getByRole("slider", { name: "Moment" });
  await scrubber.focus();
  await page.keyboard.press("Home");
  await state(page).getByText("0 objects, 0 unhealthy").waitFor();
  await page.keyboard.press("End");
  await page.getByRole("heading", { name: "The state now" }).waitFor();
}

async function narrow(page) {
  await page.locator(".bar select").first().selectOption("apps/deployments");
  await until("one kind", async () => (await rows(page, "Deployment").count()) > 0 && (await rows(page, /^(ConfigMap|Pod|ReplicaSet)/).count()) === 0);
  await page.getByLabel("Health only").check();
  await until("turns of health", async () => (await rows(page, "replicas are available").count()) > 0);
  await page.getByLabel("Health only").uncheck();
  await page.locator(".bar select").first().selectOption("");
}

/** A user that may read pods alone sees changes of pods, with managers but without users, and what it may not read. */
async function limited(chrome, made, api) {
  await api.apply("/apis/rbac.authorization.k8s.io/v1/namespaces/past/roles/reader", { apiVersion: "rbac.authorization.k8s.io/v1", kind: "Role", metadata: { name: "reader" }, rules: [{ apiGroups: [""], resources: ["pods"], verbs: ["get", "list", "watch"] }] });
  await api.apply("/apis/rbac.authorization.k8s.io/v1/namespaces/past/rolebindings/readers", { apiVersion: "rbac.authorization.k8s.io/v1", kind: "RoleBinding", metadata: { name: "readers" }, roleRef: { apiGroup: "rbac.authorization.k8s.io", kind: "Role", name: "reader" }, subjects: [{ kind: "ServiceAccount", name: "default", namespace: "past" }] });
  const token = await api.request("POST", "/api/v1/namespaces/past/serviceaccounts/default/token", { apiVersion: "authentication.k8s.io/v1", kind: "TokenRequest", spec: {} });
  const page = await newPage(chrome);
  await page.goto(`${made.url}/console`);
  await page.getByLabel("Bearer token").fill(token.status.token);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.locator(".user", { hasText: "system:serviceaccount:past:default" }).waitFor();
  await page.evaluate(() => { location.hash = "#/changes?ns=past"; });
  await rows(page, "Pod shown").filter({ hasText: "kubelet" }).first().waitFor();
  await state(page).getByText(/cannot list resource "secrets"/).waitFor();
  await state(page).getByText(/cannot list resource "revisions"/).waitFor();
  equal([await rows(page, /Deployment|ConfigMap/).count(), await rows(page, "kubernetes-admin").count()], [0, 0], "rows of what it may not read");
  await axe(page);
  // In another namespace it may list nothing.
  await page.evaluate(() => { location.hash = "#/changes?ns=default"; });
  await page.getByRole("alert").getByText("Not allowed").waitFor();
  equal(page.errors, [], "errors of the page");
  await page.context().close();
}

export async function changes(chrome, made, api, shot) {
  const proxy = await console_(made.kubeconfig);
  const page = await newPage(chrome);
  await page.goto(proxy.link);
  await page.getByRole("heading", { name: "Problems" }).waitFor();
  await check("changes of a namespace are live, with the request that made each", async () => {
    await prepare(api);
    await live(page, api);
    await axe(page);
    equal(page.errors, [], "errors of the page");
  });
  await check("changes: the scrubber and the keys show the state at an earlier time", async () => {
    await back(page);
    await narrow(page);
    await page.locator(".bar select").last().selectOption("600000");
    await shot(page, "changes");
    await page.getByRole("button", { name: "Dark or light" }).click();
    await axe(page);
    equal(page.errors, [], "errors of the page");
  });
  await check("changes are reached from where one looks for them, also of all namespaces", async () => {
    await page.evaluate(() => { location.hash = "#/o/apps/deployments/past/shown/history"; });
    await page.getByRole("link", { name: "All changes in past" }).click();
    await rows(page, "Deployment shown").first().waitFor();
    await page.locator("label.namespace select").selectOption("");
    await page.getByRole("columnheader", { name: "Namespace" }).waitFor();
    await page.getByRole("searchbox").fill("kube-system");
    await rows(page, "kube-system").first().waitFor();
    await axe(page);
    await page.getByRole("link", { name: "Events" }).click();
    await page.getByRole("link", { name: "Changes of objects" }).click();
    await page.locator("h1", { hasText: "Changes" }).waitFor();
    await page.keyboard.press("g");
    await page.keyboard.press("o");
    await page.locator("h1", { hasText: "Pod" }).waitFor();
    await page.locator("#view .bar").getByRole("link", { name: "Changes" }).click();
    await until("the kind is chosen", async () => (await page.locator("#view .bar select").first().inputValue()) === "core/pods");
    equal(page.errors, [], "errors of the page");
  });
  await check("changes are shown with the rights of the user alone", () => limited(chrome, made, api));
  await page.context().close();
}
