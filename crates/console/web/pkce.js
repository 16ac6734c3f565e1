// OpenID Connect's code flow with PKCE (RFC 7636): the beginning. What follows the redirection is oidc.js.
const KEY = "kaji.oidc";

const url64 = (bytes) => btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
const random = () => url64(crypto.getRandomValues(new Uint8Array(32)));

/** Remembers what was begun, and goes to the page that asks the provider for its endpoints. */
export async function beginOidc(issuer, client) {
  if (!issuer.startsWith("https://")) throw new Error("The issuer's address begins with https://");
  localStorage.setItem("kaji.issuer", issuer);
  localStorage.setItem("kaji.client", client);
  const begun = { issuer: issuer.replace(/\/$/, ""), client, verifier: random(), state: random(), nonce: random() };
  sessionStorage.setItem(KEY, JSON.stringify(begun));
  location.href = "/console/oidc";
}

export async function challenge(verifier) {
  return url64(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier))));
}

export const begun = () => JSON.parse(sessionStorage.getItem(KEY) ?? "null");
export const ended = () => sessionStorage.removeItem(KEY);
