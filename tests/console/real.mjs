// Many pods of a real server: created by the API, read page by page, followed, scrolled and filtered.
//
// What is judged are conditions: rows in the document, which rows they are, counts. Times are printed. The creations take most of the
// time, so there are 20,000; PODS=50000 makes as many as many.mjs answers.
import { check, client, cluster, console_, equal, holds, newPage, until } from "./lib.mjs";

const COUNT = Number(process.env.PODS || 20_000);
const NAMESPACES = 5;
const CREATORS = 24;
const ROWS = 80;

const nameOf = (i) => `load-${String(i).padStart(5, "0")}`;
const namespaceOf = (i) => `load-${i % NAMESPACES}`;

/** Pods that no scheduler takes: they cost their creation alone. */
const pod = (i) => ({
  apiVersion: "v1", kind: "Pod", metadata: { name: nameOf(i), labels: { app: "load" } },
  spec: { schedulerName: "none", automountServiceAccountToken: false, containers: [{ name: "main", image: "app:1" }] },
});

async function fill(api) {
  for (let n = 0; n < NAMESPACES; n++) {
    await api.apply(`/api/v1/namespaces/${namespaceOf(n)}`, { apiVersion: "v1", kind: "Namespace", metadata: { name: namespaceOf(n) } });
    await until("accounts", () => api.get(`/api/v1/namespaces/${namespaceOf(n)}/serviceaccounts/default`).catch(() => null));
  }
  let next = 0;
  await Promise.all(Array.from({ length: CREATORS }, async () => {
    while (next < COUNT) {
      const i = next++;
      await api.request("POST", `/api/v1/namespaces/${namespaceOf(i)}/pods`, pod(i));
    }
  }));
}

/** Scrolls to the end, step by step: the most rows that the document had, and the steps after which no row was in the middle. */
const scroll = (page) => page.evaluate(async () => {
  const box = document.querySelector(".table");
  let most = 0, empty = 0, steps = 0;
  for (let end = false; !end && steps < 400; steps++) {
    box.scrollTop += Math.ceil(box.scrollHeight / 150);
    // Two frames: one in which the browser reports the scrolling, and one in which its rows are drawn.
    for (let i = 0; i < 2; i++) await new Promise((done) => requestAnimationFrame(done));
    const frame = box.getBoundingClientRect();
    const rows = [...document.querySelectorAll(".tbody [role=row]")].map((row) => row.getBoundingClientRect());
    most = Math.max(most, rows.length);
    const middle = (frame.top + frame.bottom) / 2;
    if (!rows.some((row) => row.top <= middle && row.bottom >= middle)) empty++;
    end = box.scrollTop + box.clientHeight >= box.scrollHeight - 1;
  }
  return { most, empty, steps };
});

export async function real(chrome) {
  const made = await cluster();
  const api = await client(await console_(made.kubeconfig));
  await check(`${COUNT.toLocaleString("en")} pods of a real server are created`, async () => {
    const began = Date.now();
    await fill(api);
    console.log(`  created in ${((Date.now() - began) / 1000).toFixed(1)} s`);
  });
  const proxy = await console_(made.kubeconfig);
  const page = await newPage(chrome);
  const rows = (text) => page.locator(".tbody [role=row]", { hasText: text });
  const count = () => page.locator(".count").innerText();
  const all = COUNT.toLocaleString("en");
  await page.goto(proxy.link);
  await page.getByRole("heading", { name: "Problems" }).waitFor();
  await check(`${all} pods of a real server are read, scrolled to the end and filtered`, async () => {
    await page.evaluate(() => { location.hash = "#/k/core/pods"; });
    await rows("load-00000").waitFor();
    await until("all of them", async () => (await count()).startsWith(all) && (await page.locator(".live.live").count()) === 1, 90);
    const seen = await scroll(page);
    console.log(`  ${seen.steps} steps of scrolling, at most ${seen.most} rows`);
    holds(seen.most < ROWS, `${seen.most} rows were in the document`);
    equal(seen.empty, 0, `steps of ${seen.steps} that showed nothing`);
    // The server's order is that of namespaces: the last row is the last pod of the last of them.
    await rows(nameOf(COUNT - 1)).waitFor();
    equal(await page.locator(".tbody [role=row]").last().getAttribute("aria-rowindex"), String(COUNT + 1), "the last row");
    await page.getByRole("searchbox").fill("load-3 load-0012");
    await until("the filter", async () => (await count()) === `2 of ${all}`);
    // What was scrolled to the end shows them when the browser has reported that there is less to scroll.
    await until("rows that match", async () => (await page.locator(".tbody [role=row]").count()) === 2);
    await page.getByRole("searchbox").fill("");
    await until("all again", async () => (await count()) === all);
    holds((await page.locator(".tbody [role=row]").count()) < ROWS, "only what is on the screen is in the document");
  });
  await check("a change among them is shown", async () => {
    await page.getByRole("searchbox").fill("load-new");
    await until("none yet", async () => (await count()).startsWith("0 of"));
    await api.request("POST", "/api/v1/namespaces/load-0/pods", { ...pod(0), metadata: { name: "load-new" } });
    await rows("load-new").waitFor();
    await api.request("DELETE", "/api/v1/namespaces/load-0/pods/load-new?gracePeriodSeconds=0");
    await rows("load-new").waitFor({ state: "detached" });
    equal(page.errors, [], "errors of the page");
  });
  await page.context().close();
  await made.end();
}
