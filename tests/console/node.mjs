// A browser at a real node's pod: see node.sh.
import { spawn } from "node:child_process";
import { browser, check, console_, counts, end, equal, holds, newPage, until } from "./lib.mjs";

const chrome = await browser();
const page = await newPage(chrome);
const proxy = await console_(process.env.KUBECONFIG);
await page.goto(proxy.link);
await page.getByRole("heading", { name: "Problems" }).waitFor();
const shown = async () => (await page.locator(".screen .xterm-rows > div").allInnerTexts()).join("\n").replace(/\u00a0/g, " ");

await check("a shell takes what is typed, and says what it prints", async () => {
  await page.evaluate(() => { location.hash = "#/o/core/pods/default/shell/terminal"; });
  await page.getByLabel("Command").fill("sh");
  await page.getByRole("button", { name: "Connect" }).click();
  await page.getByText("Connected").waitFor();
  await until("a prompt", async () => /[#$]/.test(await shown()));
  await page.keyboard.type("printf '%s \\303\\244\\n' $((6*7)); stty size\n");
  await until("the answer", async () => /^42 ä/m.test(await shown()));
  const size = await until("its size", async () => /^(\d+) (\d+)\s*$/m.exec(await shown()));
  await page.setViewportSize({ width: 900, height: 600 });
  await page.keyboard.type("echo; stty size\n");
  await until("the new size", async () => { const all = [...(await shown()).matchAll(/^(\d+) (\d+)\s*$/gm)]; return all.length && all.at(-1)[0].trim() !== size[0].trim(); });
  await page.keyboard.type("echo -e '\\033[38;2;200;30;30mred\\033[0m'\n");
  await until("a colour of its own", () => page.evaluate(() => [...document.querySelectorAll(".screen .xterm-rows span")].some((s) => s.style.color === "rgb(200, 30, 30)")));
  await page.keyboard.type("exit 3\n");
  await page.getByText("Closed").waitFor();
  await until("its exit code", async () => (await shown()).includes("exit code 3"));
  equal(page.errors, [], "errors of the page");
});

await check("lines of a log come while they are watched", async () => {
  await page.evaluate(() => { location.hash = "#/o/core/pods/default/shell/logs"; });
  const count = () => page.locator(".log > div").count();
  await until("some lines", async () => (await count()) > 3);
  const before = await count();
  await until("more", async () => (await count()) > before + 3);
  const texts = await page.locator(".log > div").allInnerTexts();
  const numbers = texts.map((t) => Number(/line (\d+)/.exec(t)?.[1]));
  equal(numbers, numbers.map((_, i) => numbers[0] + i), "lines in order, each once");
  equal(page.errors, [], "errors of the page");
});

await check("a page is loaded while addresses of the machine come and go", async () => {
  const flaps = "while true; do ip address add 198.51.100.77/32 dev uplink; sleep 0.03; ip address delete 198.51.100.77/32 dev uplink; sleep 0.03; done";
  const flapping = spawn("sh", ["-c", flaps], { stdio: "ignore" });
  try {
    let givenUp = 0;
    for (let round = 0; round < 20 && givenUp === 0; round++) {
      const fresh = await chrome.newContext();
      const opened = await fresh.newPage();
      opened.on("requestfailed", (request) => { if (request.failure()?.errorText === "net::ERR_NETWORK_CHANGED") givenUp++; });
      await opened.goto((await console_(process.env.KUBECONFIG)).link);
      await opened.getByRole("heading", { name: "Problems" }).waitFor({ timeout: 60_000 });
      await fresh.close();
    }
    holds(givenUp > 0, "the browser has not given up a request, so nothing was shown");
  } finally {
    flapping.kill();
  }
});

await chrome.close();
await end();
const { passed, failed } = counts();
console.log(`${passed} passed, ${failed.length} failed`);
process.exit(failed.length ? 1 : 0);
