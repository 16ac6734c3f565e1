// Signing in with an identity provider, which is answered here: the code flow with PKCE, and what must not be accepted.
import { createHash } from "node:crypto";
import { axe, check, equal, holds, newPage, until } from "./lib.mjs";

const ISSUER = "https://issuer.test";
const url64 = (value) => Buffer.from(value).toString("base64url");
const cors = { "access-control-allow-origin": "*" };

/** A provider; `forge` changes what it sends. */
async function provider(page, forge = {}) {
  const seen = {};
  await page.route(`${ISSUER}/**`, async (route) => {
    const url = new URL(route.request().url());
    if (url.pathname.endsWith("openid-configuration")) {
      return route.fulfill({ headers: cors, json: { issuer: forge.issuer ?? ISSUER, authorization_endpoint: `${ISSUER}/authorize`, token_endpoint: `${ISSUER}/token` } });
    }
    if (url.pathname === "/authorize") {
      Object.assign(seen, Object.fromEntries(url.searchParams));
      const back = new URL(seen.redirect_uri);
      back.searchParams.set("code", "c0de");
      back.searchParams.set("state", forge.state ?? seen.state);
      return route.fulfill({ status: 302, headers: { location: back.href } });
    }
    const form = new URLSearchParams(route.request().postData());
    const proof = createHash("sha256").update(form.get("code_verifier")).digest("base64url");
    equal([form.get("code"), proof, form.get("client_id")], ["c0de", seen.code_challenge, "console"], "the exchange");
    seen.token = `${url64('{"alg":"RS256"}')}.${url64(JSON.stringify({ sub: "alice", nonce: forge.nonce ?? seen.nonce }))}.c2lnbmF0dXJl`;
    return route.fulfill({ headers: cors, json: { id_token: seen.token } });
  });
  return seen;
}

async function begin(page, url) {
  await page.goto(`${url}/console/`);
  await page.getByLabel("Issuer").fill(ISSUER);
  await page.getByLabel("Client ID").fill("console");
  await page.getByRole("button", { name: "Continue to the provider" }).click();
}

export async function oidc(chrome, made) {
  await check("OpenID Connect with PKCE gets a token, which is sent to the API server", async () => {
    const page = await newPage(chrome);
    const seen = await provider(page);
    const sent = [];
    page.on("request", (request) => { if (new URL(request.url()).pathname.startsWith("/api")) sent.push(request.headers().authorization); });
    await begin(page, made.url);
    await until("the token is sent", () => sent.includes(`Bearer ${seen.token}`) && seen.token);
    equal(seen.code_challenge_method, "S256");
    // The server does not trust this issuer.
    await page.getByRole("alert").waitFor();
    equal(await page.context().cookies(), [], "cookies");
    equal(page.errors, [], "errors of the page");
    await page.context().close();
  });
  await check("answers of another sign-in, and of another issuer, are not accepted", async () => {
    for (const [forge, said] of [[{ state: "other" }, "another sign-in"], [{ nonce: "other" }, "another sign-in"], [{ issuer: "https://evil.test" }, "calls itself"]]) {
      const page = await newPage(chrome);
      await provider(page, forge);
      await begin(page, made.url);
      await page.getByRole("status").getByText(said).waitFor();
      await axe(page);
      holds((await page.evaluate(() => sessionStorage.getItem("kaji.session"))) === null, "there is a session");
      await page.context().close();
    }
  });
}
