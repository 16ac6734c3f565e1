// 50,000 pods: a real page and a real server; its list of pods is answered here, page by page, as the server's Table is.
import { check, console_, equal, holds, newPage, until } from "./lib.mjs";

const COUNT = 50_000;
const names = ["Name", "Ready", "Status", "Restarts", "Age"];

function row(i) {
  const name = `load-${String(i).padStart(5, "0")}`;
  return {
    cells: [name, i % 97 ? "1/1" : "0/1", i % 97 ? "Running" : "CrashLoopBackOff", i % 7, "1h"],
    object: { kind: "PartialObjectMetadata", metadata: { name, namespace: `ns-${i % 50}`, uid: `uid-${i}`, creationTimestamp: "2026-01-01T00:00:00Z", labels: { app: "load" } } },
  };
}

function tableOf(url) {
  const limit = Number(url.searchParams.get("limit") ?? 500), from = Number(url.searchParams.get("continue") || 0);
  const to = Math.min(COUNT, from + limit);
  const rows = [];
  for (let i = from; i < to; i++) rows.push(row(i));
  return {
    kind: "Table", apiVersion: "meta.k8s.io/v1", rows,
    metadata: { resourceVersion: "1000", ...(to < COUNT && { continue: String(to), remainingItemCount: COUNT - to }) },
    columnDefinitions: names.map((name) => ({ name, type: name === "Restarts" ? "integer" : "string", priority: 0, description: name })),
  };
}

export async function many(chrome, made, shot) {
  const proxy = await console_(made.kubeconfig);
  const page = await newPage(chrome);
  await page.route(/\/api\/v1\/pods\?/, async (route) => {
    const url = new URL(route.request().url());
    if (url.searchParams.has("watch")) return route.fulfill({ status: 200, contentType: "application/json", body: "" });
    return route.fulfill({ json: tableOf(url) });
  });
  await page.goto(`${proxy.link}`);
  await page.getByRole("heading", { name: "Problems" }).waitFor();
  await check("50,000 pods are read in pages, and scrolled smoothly", async () => {
    await page.evaluate(() => { location.hash = "#/k/core/pods"; });
    await page.locator(".tbody [role=row]").first().waitFor();
    await until("all of them", async () => (await page.locator(".count").innerText()).startsWith("50,000"), 60);
    holds((await page.locator(".tbody [role=row]").count()) < 80, "only what is on the screen is in the document");
    const frames = await page.evaluate(async () => {
      const box = document.querySelector(".table");
      const gaps = [];
      let before = performance.now();
      for (let i = 0; i < 120; i++) {
        box.scrollTop += 9_000;
        await new Promise((done) => requestAnimationFrame(done));
        const now = performance.now();
        gaps.push(now - before);
        before = now;
      }
      gaps.sort((a, b) => a - b);
      return { median: gaps[60], p95: gaps[114], rows: document.querySelectorAll(".tbody [role=row]").length };
    });
    console.log(`  a frame of scrolling: ${frames.median.toFixed(0)} ms in the median, ${frames.p95.toFixed(0)} ms in the 95th percentile`);
    // Times depend on what else the machine does: they are printed, and what they depend on is judged.
    holds(frames.rows < 80, "rows on the screen alone are in the document while it is scrolled");
    await page.locator(".table").focus();
    await page.keyboard.press("End");
    await page.locator(".tbody [role=row]", { hasText: "load-49999" }).waitFor();
    const began = Date.now();
    await page.getByRole("searchbox").fill("crashloop ns-7");
    await until("the filter", async () => /^1\d of 50,000/.test(await page.locator(".count").innerText()) || /^\d+ of 50,000/.test(await page.locator(".count").innerText()));
    console.log(`  the filter is shown after ${Date.now() - began} ms`);
    const kept = await page.evaluate(() => performance.memory?.usedJSHeapSize ?? 0);
    console.log(`  the page's heap: ${(kept / 1e6).toFixed(0)} MB`);
    holds(kept < 300e6, `the page keeps ${kept} bytes`);
    await page.getByRole("searchbox").fill("");
    await shot(page, "many");
    equal(page.errors, [], "errors of the page");
  });
  await page.context().close();
}
