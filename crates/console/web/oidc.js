// The page of OpenID Connect: asks the provider for its endpoints, goes to it, and exchanges the code that it sends back.
//
// It is a page of its own because it may connect to other hosts; it shows nothing of a cluster.
import { begun, challenge, ended } from "./pkce.js";

const here = `${location.origin}/console/oidc`;

function show(text) {
  document.getElementById("state").textContent = text;
}

async function json(url, options) {
  const answer = await fetch(url, { ...options, credentials: "omit" });
  const value = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(value.error_description ?? value.error ?? `${url}: ${answer.status}`);
  return value;
}

function claimsOf(token) {
  const payload = token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/");
  return JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(payload), (c) => c.charCodeAt(0))));
}

async function run() {
  const flow = begun();
  if (!flow) throw new Error("Nothing was begun in this tab.");
  const given = new URLSearchParams(location.search);
  if (given.has("error")) throw new Error(given.get("error_description") ?? given.get("error"));
  const provider = await json(`${flow.issuer}/.well-known/openid-configuration`);
  if (provider.issuer?.replace(/\/$/, "") !== flow.issuer) throw new Error(`The provider calls itself ${provider.issuer}.`);
  if (!given.has("code")) {
    const target = new URL(provider.authorization_endpoint);
    if (target.protocol !== "https:") throw new Error("The provider's address is not https.");
    const values = {
      response_type: "code", client_id: flow.client, redirect_uri: here, scope: "openid profile email groups", state: flow.state,
      nonce: flow.nonce, code_challenge: await challenge(flow.verifier), code_challenge_method: "S256",
    };
    for (const [key, value] of Object.entries(values)) target.searchParams.set(key, value);
    location.replace(target.href);
    return;
  }
  if (given.get("state") !== flow.state) throw new Error("The answer belongs to another sign-in.");
  ended();
  const body = new URLSearchParams({
    grant_type: "authorization_code", code: given.get("code"), redirect_uri: here, client_id: flow.client, code_verifier: flow.verifier,
  });
  const tokens = await json(provider.token_endpoint, { method: "POST", body });
  if (!tokens.id_token) throw new Error("The provider gave no ID token.");
  if (claimsOf(tokens.id_token).nonce !== flow.nonce) throw new Error("The token belongs to another sign-in.");
  sessionStorage.setItem("kaji.session", JSON.stringify({ token: tokens.id_token, proxy: false }));
  location.replace("/console/");
}

run().catch((error) => {
  ended();
  show(`That did not work: ${error.message}`);
});
