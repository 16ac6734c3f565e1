// A terminal in a container: exec over a WebSocket, subprotocol v5.channel.k8s.io (a channel's number before each message).
import { html, styles, useEffect, useRef, useState, xterm } from "../vendor.js";
import { query } from "../api.js";
import { find, objectPath } from "../kinds.js";
import { stylesheet } from "../load.js";
import { tokenProtocol } from "../session.js";

const PROTOCOL = "v5.channel.k8s.io";
const [STDIN, STDOUT, STDERR, ERROR, RESIZE] = [0, 1, 2, 3, 4];
// More than this unsent, and the keyboard waits.
const MOST_UNSENT = 1 << 20;

/**
 * xterm makes elements of styles, and attributes of styles for colours; the page's policy takes the first with its nonce only, and the
 * second not at all. So elements get the nonce when they are made, and such attributes are set as properties.
 */
function admitStyles() {
  if (Object.hasOwn(document, "createElement")) return;
  const nonce = document.querySelector('meta[name="csp-nonce"]')?.content ?? "";
  const create = document.createElement.bind(document);
  function setAttribute(name, value) {
    if (name === "style") this.style.cssText = value;
    else Element.prototype.setAttribute.call(this, name, value);
  }
  document.createElement = (tag, options) => {
    const element = create(tag, options);
    if (tag === "style") element.nonce = nonce;
    if (tag === "span") element.setAttribute = setAttribute;
    return element;
  };
}

function colors() {
  const of = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return { background: of("--card"), foreground: of("--text"), cursor: of("--accent"), selectionBackground: of("--accent-soft") };
}

export function Terminal({ pod }) {
  const containers = pod.spec.containers.map((c) => c.name);
  const [container, setContainer] = useState(containers[0]);
  const [command, setCommand] = useState("sh");
  const [round, setRound] = useState(0);
  const [state, setState] = useState("idle");
  const box = useRef(null);
  useEffect(() => {
    if (round === 0) return;
    let socket, terminal, observer, gone = false;
    setState("connecting");
    (async () => {
      const [{ Terminal: Screen, FitAddon }] = await Promise.all([xterm(), stylesheet(styles.xterm)]);
      admitStyles();
      if (gone) return;
      terminal = new Screen({ fontFamily: "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace", fontSize: 13, theme: colors(), screenReaderMode: true, convertEol: true, scrollback: 5000 });
      const fit = new FitAddon();
      terminal.loadAddon(fit);
      terminal.open(box.current);
      fit.fit();
      const path = query(`${objectPath(find("", "pods"), pod.metadata.namespace, pod.metadata.name)}/exec`, { container, stdin: true, stdout: true, stderr: true, tty: true });
      const words = command.trim().split(/\s+/).map((w) => `command=${encodeURIComponent(w)}`).join("&");
      socket = new WebSocket(`${location.origin.replace(/^http/, "ws")}${path}&${words}`, [PROTOCOL, tokenProtocol()]);
      socket.binaryType = "arraybuffer";
      const send = (channel, text) => {
        if (socket.readyState !== WebSocket.OPEN || socket.bufferedAmount > MOST_UNSENT) return;
        const bytes = new TextEncoder().encode(text);
        const message = new Uint8Array(bytes.length + 1);
        message[0] = channel;
        message.set(bytes, 1);
        socket.send(message);
      };
      const resize = () => { fit.fit(); send(RESIZE, JSON.stringify({ Width: terminal.cols, Height: terminal.rows })); };
      socket.onopen = () => { setState("open"); resize(); terminal.focus(); };
      socket.onmessage = (event) => {
        const bytes = new Uint8Array(event.data);
        if (bytes[0] === STDOUT || bytes[0] === STDERR) terminal.write(bytes.subarray(1));
        else if (bytes[0] === ERROR) {
          const status = JSON.parse(new TextDecoder().decode(bytes.subarray(1)) || "{}");
          if (status.status === "Failure") terminal.write(`\r\n\x1b[31m${status.message}\x1b[0m\r\n`);
        }
      };
      socket.onclose = (event) => { setState("closed"); if (!event.wasClean || event.code > 1001) terminal.write(`\r\n\x1b[31m${event.reason || "The connection could not be made, or has ended."}\x1b[0m\r\n`); };
      terminal.onData((text) => send(STDIN, text));
      observer = new ResizeObserver(() => resize());
      observer.observe(box.current);
    })();
    return () => { gone = true; observer?.disconnect(); socket?.close(); terminal?.dispose(); };
  }, [round]);
  return html`<form class="bar" onSubmit=${(e) => { e.preventDefault(); setRound(round + 1); }}>
      <label class="field">Container <select value=${container} onChange=${(e) => setContainer(e.currentTarget.value)}>${containers.map((c) => html`<option key=${c}>${c}</option>`)}</select></label>
      <label class="field">Command <input type="text" value=${command} onInput=${(e) => setCommand(e.currentTarget.value)} spellcheck="false" /></label>
      <button class="primary" disabled=${!command.trim()}>${round ? "Anew" : "Connect"}</button>
      <span class="quiet" role="status">${{ idle: "", connecting: "Connecting…", open: "Connected", closed: "Closed" }[state]}</span>
    </form>
    <div class="screen" ref=${box}></div>`;
}
