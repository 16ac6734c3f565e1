// The session: the user's token, in memory and in the tab's sessionStorage, so that a reload keeps it. Never in a cookie.
//
// Behind `kaji console` the token is one of that process, got for the one-time code of the link; else it is a bearer token of the API
// server, pasted or got by OpenID Connect (oidc.js).
import { signal } from "./vendor.js";
import { fetchAgain } from "./load.js";

const KEY = "kaji.session";

/** `{token, proxy, cluster, namespace}` or null. */
export const session = signal(read());
/** Whether this page is served by `kaji console`. */
export const proxied = signal(false);
/** Why there is no session. */
export const refused = signal("");

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY) ?? "null");
  } catch {
    return null;
  }
}

export function signIn(value) {
  sessionStorage.setItem(KEY, JSON.stringify(value));
  refused.value = "";
  session.value = value;
}

export function signOut(why = "") {
  sessionStorage.removeItem(KEY);
  refused.value = why;
  session.value = null;
}

/** Exchanges the code of the link, if there is one, and takes it out of the address. */
export async function begin() {
  const code = /^#code=([0-9a-f]+)$/.exec(location.hash)?.[1];
  if (location.protocol === "http:") {
    try {
      const found = await fetchAgain("/kaji-console/session");
      proxied.value = found.ok && (await found.json()).proxy === true;
    } catch {
      // The page says so when it asks for something.
    }
  }
  if (!code) return;
  // Only now: a page that is loaded again before has the code still.
  history.replaceState(null, "", location.pathname + "#/");
  try {
    const answer = await fetchAgain("/kaji-console/session", { method: "POST", body: code });
    const value = await answer.json();
    if (answer.ok) signIn({ ...value, proxy: true });
    else signOut(value.message);
  } catch (error) {
    signOut(`kaji console does not answer: ${error.message}`);
  }
}

/** The subprotocol that carries the token of a WebSocket. */
export function tokenProtocol() {
  const bytes = new TextEncoder().encode(session.value?.token ?? "");
  const text = btoa(String.fromCharCode(...bytes));
  return "base64url.bearer.authorization.k8s.io." + text.replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}
