// Without a session: a token is pasted, or got from an identity provider (OpenID Connect with PKCE).
import { html, useState } from "./vendor.js";
import { proxied, refused, signIn } from "./session.js";
import { beginOidc } from "./pkce.js";

export function SignIn() {
  const [token, setToken] = useState("");
  const [issuer, setIssuer] = useState(localStorage.getItem("kaji.issuer") ?? "");
  const [client, setClient] = useState(localStorage.getItem("kaji.client") ?? "");
  const [problem, setProblem] = useState("");
  const oidc = (event) => {
    event.preventDefault();
    setProblem("");
    beginOidc(issuer.trim(), client.trim()).catch((error) => setProblem(error.message));
  };
  const message = problem || refused.value;
  return html`<main class="alone signin">
    <h1>Kaji</h1>
    ${message && html`<p class="failure" role="alert">${message}</p>`}
    ${proxied.value
      ? html`<p>This page belongs to <code>kaji console</code>, which has printed a link with a code that is good once. Press Enter in its terminal for another one.</p>`
      : html`<p>The easiest way in is <code>kaji console</code>: it uses your kubeconfig.</p>
        <form onSubmit=${(e) => { e.preventDefault(); if (token.trim()) signIn({ token: token.trim(), proxy: false }); }}>
          <h2>With a token</h2>
          <label>Bearer token
            <input type="password" autocomplete="off" spellcheck="false" value=${token} onInput=${(e) => setToken(e.currentTarget.value)} /></label>
          <p class="quiet">For example from <code>kubectl create token NAME</code>. It stays in this tab.</p>
          <button class="primary" disabled=${!token.trim()}>Sign in</button>
        </form>
        <form onSubmit=${oidc}>
          <h2>With OpenID Connect</h2>
          <label>Issuer <input type="url" placeholder="https://issuer.example.com" value=${issuer} onInput=${(e) => setIssuer(e.currentTarget.value)} /></label>
          <label>Client ID <input type="text" value=${client} onInput=${(e) => setClient(e.currentTarget.value)} /></label>
          <p class="quiet">The provider must allow <code>${location.origin}/console/oidc</code> as a redirection, and its token endpoint requests from here (CORS).</p>
          <button disabled=${!issuer.trim() || !client.trim()}>Continue to the provider</button>
        </form>`}
  </main>`;
}
