// A cluster, its console and a browser for the tests, and the counting of what holds.
import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";
import { chromium } from "playwright-core";
import { until } from "./check.mjs";

export * from "./check.mjs";

const require = createRequire(import.meta.url);
export const AXE = require.resolve("axe-core/axe.min.js");
const KAJI = path.resolve(process.env.KAJI ?? "target/debug/kaji");
// Files of the console are taken from here instead of the program, while they are worked on.
const FILES = process.env.KAJI_CONSOLE_FILES;

const children = [];

/** Starts the program; resolves with its first line that matches. */
function start(args, pattern, stream = "stdout") {
  const child = spawn(KAJI, args, { stdio: ["ignore", "pipe", "pipe"] });
  children.push(child);
  return new Promise((done, fail) => {
    let text = "";
    const timer = setTimeout(() => fail(new Error(`kaji ${args[0]} is not ready: ${text}`)), 120_000);
    for (const name of ["stdout", "stderr"]) {
      child[name].on("data", (data) => {
        text = (text + data).slice(-20_000);
        const found = pattern.exec(text);
        if (found && (stream === "any" || name === stream)) { clearTimeout(timer); done({ child, found }); }
      });
    }
    child.on("exit", (code) => fail(new Error(`kaji ${args[0]} ended with ${code}: ${text}`)));
  });
}

export async function cluster() {
  const dir = await mkdtemp(path.join(tmpdir(), "kaji-console-"));
  const kubeconfig = path.join(dir, "kubeconfig");
  const server = start(["up", "--data-dir", path.join(dir, "data"), "--port", "0", "--nodes", "sim:3", "--kubeconfig", kubeconfig], /never/, "any");
  server.catch(() => undefined);
  const child = children.at(-1);
  const text = await until("the kubeconfig", () => readFile(kubeconfig, "utf8").catch(() => ""), 120);
  const url = /server: (\S+)/.exec(text)[1];
  const remove = () => rm(dir, { recursive: true, force: true });
  return { dir, kubeconfig, url, remove, end: () => stop(child).then(remove) };
}

/** `kaji console`: its link with a code. */
export async function console_(kubeconfig, port = 0) {
  const { child, found } = await start(["console", "--kubeconfig", kubeconfig, "--port", String(port)], /(http:\/\/127\.0\.0\.1:\d+)\/console\/#code=([0-9a-f]+)/);
  return { child, link: found[0], origin: found[1], code: found[2] };
}

/** A client of the API through the console's proxy. */
export async function client(proxy) {
  const answer = await fetch(`${proxy.origin}/kaji-console/session`, { method: "POST", body: proxy.code });
  const { token } = await answer.json();
  const request = async (method, url, body, type = "application/json") => {
    const sent = await fetch(proxy.origin + url, { method, headers: { Authorization: `Bearer ${token}`, "Content-Type": type }, body: body && JSON.stringify(body) });
    const value = await sent.json();
    if (!sent.ok) throw new Error(`${method} ${url}: ${value.message}`);
    return value;
  };
  return {
    token,
    request,
    get: (url) => request("GET", url),
    apply: (url, body) => request("PATCH", `${url}?fieldManager=fixtures&force=true`, body, "application/apply-patch+yaml"),
  };
}

export async function browser() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
}

/** A page on which every error is a failure: of scripts, and of the policy. */
export async function newPage(of, options = {}) {
  const context = await of.newContext({ viewport: { width: 1280, height: 760 }, reducedMotion: "reduce", ignoreHTTPSErrors: true, ...options });
  const page = await context.newPage();
  page.errors = [];
  page.on("pageerror", (error) => page.errors.push(String(error.stack ?? error)));
  page.on("console", (message) => {
    if (message.type() === "error" && !/Failed to load resource|ERR_/.test(message.text())) page.errors.push(message.text());
  });
  if (FILES) {
    await page.route(/\/console\/[0-9a-f]{16}\/(web|vendor)\//, async (route) => {
      const file = path.join(FILES, new URL(route.request().url()).pathname.split("/").slice(3).join("/"));
      await route.fulfill({ path: file, contentType: file.endsWith(".css") ? "text/css" : file.endsWith(".svg") ? "image/svg+xml" : "text/javascript" });
    });
  }
  page.setDefaultTimeout(20_000);
  return page;
}

/** What axe finds on the page as it is. */
export async function axe(page) {
  // By the debugger, which the page's policy does not concern.
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(await readFile(AXE, "utf8"));
  const found = await page.evaluate(async () => {
    const result = await window.axe.run(document, { resultTypes: ["violations"] });
    return result.violations.map((v) => `${v.id}: ${v.nodes.slice(0, 4).map((n) => `${n.html.slice(0, 160)} (${n.failureSummary?.split("\n").slice(1, 2).join().trim()})`).join(" | ")}`);
  });
  if (found.length) throw new Error(`axe: ${found.join("\n  ")}`);
}

async function stop(child) {
  if (child.exitCode !== null) return;
  const gone = new Promise((done) => child.once("exit", done));
  child.kill("SIGTERM");
  await Promise.race([gone, new Promise((done) => setTimeout(done, 10_000))]);
  if (child.exitCode === null) child.kill("SIGKILL");
}

export async function end() {
  for (const child of children.reverse()) await stop(child);
}
