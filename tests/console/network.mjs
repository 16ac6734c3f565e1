// A slow connection, and one that breaks: the page says so, shows what it had, and goes on.
import { check, client, console_, equal, newPage, until } from "./lib.mjs";

const pod = (name) => ({ apiVersion: "v1", kind: "Pod", metadata: { name, labels: { app: name } }, spec: { containers: [{ name: "main", image: "app:1" }] } });

export async function network(chrome, made) {
  await check("over a slow connection the page comes up", async () => {
    const proxy = await console_(made.kubeconfig);
    const page = await newPage(chrome);
    const debug = await page.context().newCDPSession(page);
    await debug.send("Network.enable");
    await debug.send("Network.emulateNetworkConditions", { offline: false, latency: 400, downloadThroughput: 50_000, uploadThroughput: 50_000 });
    const began = Date.now();
    await page.goto(proxy.link, { timeout: 60_000 });
    await page.getByRole("heading", { name: "Problems" }).waitFor({ timeout: 60_000 });
    console.log(`  400 ms and 50 kB/s: the first view after ${((Date.now() - began) / 1000).toFixed(1)} s`);
    await page.locator(".problem").first().waitFor({ timeout: 60_000 });
    equal(page.errors, [], "errors of the page");
    await page.context().close();
  });
  await check("a broken connection is said, and what changed meanwhile is there after it", async () => {
    const api = await client(await console_(made.kubeconfig));
    const proxy = await console_(made.kubeconfig);
    const page = await newPage(chrome);
    await page.goto(proxy.link);
    await page.getByRole("heading", { name: "Problems" }).waitFor();
    await page.evaluate(() => { sessionStorage.setItem("kaji.namespace", "shop"); location.hash = "#/k/core/pods"; location.reload(); });
    const row = (name) => page.locator(".tbody [role=row]", { hasText: name });
    await row("too-big").waitFor();
    const port = Number(new URL(proxy.origin).port);
    proxy.child.kill("SIGSTOP");
    await page.evaluate(() => { location.hash = "#/k/core/pods?labels=app%3Dtoo-big"; });
    proxy.child.kill("SIGCONT");
    await page.evaluate(() => { location.hash = "#/k/core/pods"; });
    await row("too-big").waitFor();
    await page.context().setOffline(true);
    await page.evaluate(() => { location.hash = "#/k/core/configmaps"; });
    await page.locator(".broken").waitFor();
    await api.apply("/api/v1/namespaces/shop/pods/late", pod("late"));
    await page.context().setOffline(false);
    await page.locator(".broken").waitFor({ state: "detached", timeout: 30_000 });
    await page.evaluate(() => { location.hash = "#/k/core/pods"; });
    await row("late").waitFor();
    await api.request("DELETE", "/api/v1/namespaces/shop/pods/late?gracePeriodSeconds=0");
    await until("it is gone", async () => (await row("late").count()) === 0);
    // Another process at the same address does not know the session: the page asks to sign in.
    proxy.child.kill("SIGTERM");
    await new Promise((done) => proxy.child.once("exit", done));
    await console_(made.kubeconfig, port);
    await page.getByText("Press Enter in its terminal").waitFor({ timeout: 30_000 });
    equal(page.errors, [], "errors of the page");
    await page.context().close();
  });
}
