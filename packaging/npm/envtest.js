// Clusters for the tests of operators: `kaji envtest serve` behind plain JavaScript, for node:test, vitest and jest.
//
//     const { start } = require("kaji/envtest");
//     let control;
//     before(async () => { control = await start(); /* set control.base up: definitions */ });
//     after(() => control.stop());
//     test("…", () => control.withFork(async (cluster) => { /* cluster.kubeconfig */ }));
//
// vitest and jest run test files in processes of their own: a global set-up starts the control, and hands `control.announced` to them, which
// is JSON; there `connect(announced)` is the same control.
"use strict";
const { spawn } = require("node:child_process");
const { request } = require("node:http");
const { createInterface } = require("node:readline");
const { once } = require("node:events");

/** The binary: KAJI, else that of the package for this platform, else that of the PATH. */
function program() {
  if (process.env.KAJI) return process.env.KAJI;
  try {
    return require.resolve(`kaji-${process.platform}-${process.arch}/bin/kaji`);
  } catch {
    return "kaji";
  }
}

/** The control refused a request, or did not start. */
class ControlError extends Error {}

/** A process `kaji envtest serve`, which ends with `stop` of the control that started it, and with that process. */
class Control {
  constructor(child, announced) {
    this.child = child;
    this.announced = announced;
    this.url = new URL(announced.control);
    this.token = announced.token;
    this.base = new Cluster(this, announced.cluster);
  }

  /** Sends a request and resolves to the answer; `body` is JSON, or the text of a plan. */
  request(method, path, body, query = {}) {
    const given = Object.entries(query).filter(([, value]) => value !== undefined);
    const search = given.length ? `?${new URLSearchParams(given.map(([k, v]) => [k, String(v)]))}` : "";
    const data = body === undefined ? "" : typeof body === "string" ? body : JSON.stringify(body);
    const headers = { authorization: `Bearer ${this.token}`, "content-length": Buffer.byteLength(data) };
    const { hostname, port } = this.url;
    return new Promise((resolve, reject) => {
      const sent = request({ hostname, port, method, path: `/v1/${path}${search}`, headers, agent: false }, (answer) => {
        const pieces = [];
        answer.on("data", (piece) => pieces.push(piece));
        answer.on("error", reject);
        answer.on("end", () => {
          try {
            const value = JSON.parse(Buffer.concat(pieces).toString());
            if (answer.statusCode < 300) resolve(value);
            else reject(new ControlError(value.error));
          } catch (error) {
            reject(error);
          }
        });
      });
      sent.on("error", reject);
      sent.end(data);
    });
  }

  /** Runs `test` with a fork of the base, which ends with it. */
  async withFork(test) {
    const cluster = await this.base.fork();
    try {
      return await test(cluster);
    } finally {
      await cluster.delete();
    }
  }

  /** Ends the process and all clusters. A control of `connect` leaves that to the one that started it. */
  async stop() {
    if (!this.child || this.child.exitCode !== null || this.child.signalCode !== null) return;
    const ended = once(this.child, "exit");
    this.child.stdin.end();
    await ended;
  }
}

/** A cluster: `kubeconfig` for the test, `faults.kubeconfig` for the client under test, if it is to meet faults. */
class Cluster {
  #control;

  constructor(control, { name, url, kubeconfig, kubeconfigFile, faults }) {
    this.#control = control;
    Object.assign(this, { name, url, kubeconfig, kubeconfigFile, faultsAccess: faults });
  }

  #request(method, part, body, query) {
    const path = ["clusters", encodeURIComponent(this.name), part].filter(Boolean).join("/");
    return this.#control.request(method, path, body, query);
  }

  /** Another cluster that begins as this one is. */
  async fork(name) {
    return new Cluster(this.#control, await this.#request("POST", "forks", name ? { name } : {}));
  }

  /** Ends it. */
  async delete() {
    await this.#request("DELETE", "");
  }

  /** The kubeconfig of a service account, `namespace/name`. */
  async kubeconfigOf(serviceAccount, faults = false) {
    return (await this.#request("POST", "kubeconfig", { serviceAccount, faults })).kubeconfig;
  }

  /** Moves the cluster's clock forward. */
  advance(seconds) {
    return this.#request("POST", "clock", { advanceSeconds: seconds });
  }

  /** The cluster's time, and how far it is ahead. */
  clock() {
    return this.#request("GET", "clock");
  }

  /** Brings faults about: a plan's text, its members, or a list of faults. `client` stands in for the plan's clients. */
  arm(plan, client) {
    return this.#request("PUT", "faults", Array.isArray(plan) ? { faults: plan } : plan, { client });
  }

  /** What came about, and the requests of the client under test. */
  faults() {
    return this.#request("GET", "faults");
  }

  /** No more faults. */
  disarm() {
    return this.#request("DELETE", "faults");
  }

  /** Waits until the client was to be killed more than `after` times; how often it was. */
  async waitForKill(after = 0, seconds = 30) {
    return (await this.#request("GET", "kills", undefined, { after, seconds })).kills;
  }

  /** Gives back what a killed client holds. */
  releaseLeases() {
    return this.#request("DELETE", "leases");
  }
}

/** Starts a control. */
async function start({ controllers = [], nodes = 0, binary = program(), args = [] } = {}) {
  const flags = ["envtest", "serve", "--until-stdin-closes", `--nodes=${nodes}`];
  if (controllers.length) flags.push(`--controllers=${controllers.join(",")}`);
  const child = spawn(binary, [...flags, ...args], { stdio: ["pipe", "pipe", "inherit"] });
  const announced = await new Promise((resolve, reject) => {
    child.once("error", (error) => {
      reject(new ControlError(`${binary} cannot be started (it is KAJI's value, of this platform's package, or on the PATH): ${error.message}`));
    });
    child.once("exit", (code, signal) => reject(new ControlError(`kaji envtest serve ended with ${code ?? signal}`)));
    createInterface({ input: child.stdout }).once("line", (line) => {
      try {
        resolve(JSON.parse(line));
      } catch {
        child.kill();
        reject(new ControlError(`${binary} is not kaji, or another version of it: ${line.slice(0, 200)}`));
      }
    });
  });
  return new Control(child, announced);
}

/** The control that another process has started, by its `announced`. */
function connect(announced) {
  return new Control(null, announced);
}

module.exports = { start, connect, Control, Cluster, ControlError };
