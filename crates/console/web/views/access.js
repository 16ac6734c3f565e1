// Rights: which subjects may do something, why a request is refused, and what the signed-in user may do.
//
// Questions about one subject are answered by the server's authorizers (reviews). Which subjects may is worked out here from the roles and
// bindings that the user may read: other authorizers than RBAC are not seen, which is said.
import { html, useState } from "../vendor.js";
import { ApiError, explains, listAll, post, whyRefused } from "../api.js";
import { collectionPath, find, kinds, namespace, objectLink, resources, user } from "../kinds.js";
import { Causes, Empty, Failure, Loading, useLoad } from "../ui.js";

const VERBS = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
const RBAC = "rbac.authorization.k8s.io";

const has = (list, value) => (list ?? []).includes("*") || (list ?? []).includes(value);

/** Whether a rule allows a request. */
export function allows(rule, { verb, group, resource, subresource, name }) {
  if (!has(rule.verbs, verb) || !has(rule.apiGroups, group)) return false;
  const full = subresource ? `${resource}/${subresource}` : resource;
  const named = (rule.resources ?? []).some((r) => r === "*" || r === full || (subresource && r === `*/${subresource}`));
  if (!named) return false;
  if (!rule.resourceNames?.length) return true;
  return Boolean(name) && rule.resourceNames.includes(name);
}

async function subjectsThatMay(question, ns, signal) {
  const read = async (plural, namespaced) => (await listAll(collectionPath(find(RBAC, plural), namespaced ? ns : ""), { most: 5000, signal })).items;
  const gaps = [];
  const quiet = (promise) => promise.catch((error) => { if (!(error instanceof ApiError)) throw error; gaps.push(error.message); return []; });
  const [clusterRoles, clusterBindings, roles, bindings] = await Promise.all([
    quiet(read("clusterroles")), quiet(read("clusterrolebindings")), ns ? quiet(read("roles", true)) : [], ns ? quiet(read("rolebindings", true)) : []]);
  const allowed = (role) => (role?.rules ?? []).some((rule) => allows(rule, question));
  const cluster = new Map(clusterRoles.map((r) => [r.metadata.name, r]));
  const local = new Map(roles.map((r) => [r.metadata.name, r]));
  const found = [];
  for (const binding of [...clusterBindings, ...bindings]) {
    const role = binding.roleRef.kind === "Role" ? local.get(binding.roleRef.name) : cluster.get(binding.roleRef.name);
    if (!allowed(role)) continue;
    for (const subject of binding.subjects ?? []) found.push({ subject, binding, role });
  }
  found.sort((a, b) => a.subject.kind.localeCompare(b.subject.kind) || a.subject.name.localeCompare(b.subject.name));
  return { found, gaps };
}

const roleLink = (role) => objectLink(find(RBAC, role.metadata.namespace ? "roles" : "clusterroles"), role.metadata.namespace, role.metadata.name);
const bindingLink = (b) => objectLink(find(RBAC, b.metadata.namespace ? "rolebindings" : "clusterrolebindings"), b.metadata.namespace, b.metadata.name);

function Subjects({ question, ns }) {
  const { value, error } = useLoad((signal) => subjectsThatMay(question, ns, signal), [JSON.stringify(question), ns]);
  if (error) return html`<${Failure} error=${error} />`;
  if (!value) return html`<${Loading} what="Reading roles and bindings" />`;
  return html`${value.found.length === 0
    ? html`<${Empty}>No binding of RBAC allows it.</${Empty}>`
    : html`<div class="scroll" tabindex="0" role="region" aria-label="Subjects that may"><table class="grid"><thead><tr><th>Subject</th><th>Name</th><th>By role</th><th>Bound by</th></tr></thead><tbody>
      ${value.found.map(({ subject, binding, role }, i) => html`<tr key=${i}><td>${subject.kind}</td><td>${subject.namespace && html`<span class="quiet">${subject.namespace}/</span>`}${subject.name}</td>
        <td><a href=${roleLink(role)}>${role.metadata.name}</a></td><td><a href=${bindingLink(binding)}>${binding.metadata.name}</a>${binding.metadata.namespace ? html` <span class="quiet">in ${binding.metadata.namespace}</span>` : html` <span class="quiet">everywhere</span>`}</td></tr>`)}
    </tbody></table></div>`}
    ${value.gaps.map((g) => html`<p key=${g} class="quiet">${g}</p>`)}
    <p class="quiet">By RBAC alone: nodes, webhooks and the group system:masters are allowed by other means.</p>`;
}

export function ObjectAccess({ resource, ns, name }) {
  const [verb, setVerb] = useState("get");
  return html`<section class="card"><div class="bar"><h2>Subjects that may</h2><select aria-label="Verb" value=${verb} onChange=${(e) => setVerb(e.currentTarget.value)}>${resource.verbs.filter((v) => v !== "create").map((v) => html`<option key=${v}>${v}</option>`)}</select>
    <span class="quiet">${resource.plural}/${name}</span></div>
    <${Subjects} question=${{ verb, group: resource.group, resource: resource.plural, subresource: "", name }} ns=${ns} /></section>`;
}

/** The server's words for a refusal, from which `kaji why` reads what was asked. */
export function refusalText(subject, q, ns) {
  const what = q.subresource ? `${q.resource}/${q.subresource}` : q.resource;
  return `${q.resource}${q.group && `.${q.group}`}${q.name ? ` "${q.name}"` : ""} is forbidden: User "${subject}" cannot ${q.verb} resource "${what}" in API group "${q.group}" ${ns ? `in the namespace "${ns}"` : "at the cluster scope"}`;
}

function groupsOf(subject) {
  const account = /^system:serviceaccount:([^:]+):/.exec(subject);
  return account ? ["system:serviceaccounts", `system:serviceaccounts:${account[1]}`, "system:authenticated"] : ["system:authenticated"];
}

async function ask(subject, q, ns, signal) {
  const attributes = { verb: q.verb, group: q.group, resource: q.resource, ...(q.subresource && { subresource: q.subresource }), ...(q.name && { name: q.name }), ...(ns && { namespace: ns }) };
  const self = !subject;
  const review = await post(`/apis/authorization.k8s.io/v1/${self ? "selfsubjectaccessreviews" : "subjectaccessreviews"}`, {
    apiVersion: "authorization.k8s.io/v1", kind: self ? "SelfSubjectAccessReview" : "SubjectAccessReview",
    spec: { resourceAttributes: attributes, ...(!self && { user: subject, groups: groupsOf(subject) }) },
  }, { signal });
  const status = review.status ?? {};
  let report = null;
  if (!status.allowed && explains.value) report = await whyRefused(refusalText(subject || user.value?.username || "", q, ns), { signal }).catch(() => null);
  return { ...status, report };
}

function Verdict({ subject, question, ns }) {
  const { value, error, loading } = useLoad((signal) => ask(subject, question, ns, signal), [subject, JSON.stringify(question), ns]);
  if (error) return html`<${Failure} error=${error} />`;
  if (!value) return loading && html`<${Loading} what="Asking the server" />`;
  return html`<p class="verdict">${value.allowed ? html`<span class="status good">It is allowed</span>` : html`<span class="status bad">It is refused</span>`} <span class="quiet">${value.reason ?? ""}</span></p>
    ${value.report && html`<${Causes} report=${value.report} />`}
    ${!value.allowed && !value.report && html`<p class="quiet">What is nearly right: <code>kaji why '${refusalText(subject || user.value?.username || "", question, ns)}'</code></p>`}`;
}

function Rules() {
  const ns = namespace.value || "default";
  const { value, error } = useLoad((signal) => post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", {
    apiVersion: "authorization.k8s.io/v1", kind: "SelfSubjectRulesReview", spec: { namespace: ns },
  }, { signal }), [ns]);
  const rules = value?.status?.resourceRules ?? [];
  return html`<section class="card"><h2>What you may do in ${ns}</h2>
    ${error && html`<${Failure} error=${error} />`}
    ${value?.status?.incomplete && html`<p class="quiet">The list is incomplete: ${value.status.evaluationError}</p>`}
    <div class="scroll" tabindex="0" role="region" aria-label="Your rights"><table class="grid"><thead><tr><th>Resources</th><th>Groups</th><th>Verbs</th><th>Names</th></tr></thead><tbody>
      ${rules.slice(0, 200).map((r, i) => html`<tr key=${i}><td class="long">${(r.resources ?? []).join(", ")}</td><td>${(r.apiGroups ?? []).map((g) => g || "core").join(", ")}</td><td>${(r.verbs ?? []).join(", ")}</td><td>${(r.resourceNames ?? []).join(", ")}</td></tr>`)}
    </tbody></table></div></section>`;
}

export function AccessView() {
  const [form, setForm] = useState({ subject: "", verb: "list", kind: "/pods", sub: "", name: "", ns: namespace.value || "default" });
  const set = (field) => (e) => { const { value } = e.currentTarget; setForm((old) => ({ ...old, [field]: value })); };
  const [group, plural] = form.kind.split("/");
  const resource = resources.value.find((r) => r.group === group && r.plural === plural);
  const question = { verb: form.verb, group, resource: plural, subresource: form.sub, name: form.name };
  const ns = resource?.namespaced ? form.ns : "";
  return html`<div class="page"><div class="bar"><h1>Access</h1><span class="quiet">you are ${user.value?.username ?? "unknown"}</span></div>
    <section class="card"><form class="ask" onSubmit=${(e) => e.preventDefault()}>
      <label>Subject <input type="text" placeholder="you; or a user's name" value=${form.subject} onChange=${set("subject")} /></label>
      <label>Verb <select value=${form.verb} onChange=${set("verb")}>${VERBS.map((v) => html`<option key=${v}>${v}</option>`)}</select></label>
      <label>Kind <select value=${form.kind} onChange=${set("kind")}>${kinds.value.map((r) => html`<option key=${r.group + r.plural} value=${`${r.group}/${r.plural}`}>${r.plural}${r.group && `.${r.group}`}</option>`)}</select></label>
      <label>Subresource <select value=${form.sub} onChange=${set("sub")}><option value="">none</option>${(resource?.subresources ?? []).map((s) => html`<option key=${s}>${s}</option>`)}</select></label>
      <label>Name <input type="text" placeholder="any" value=${form.name} onChange=${set("name")} /></label>
      <label>Namespace <input type="text" value=${form.ns} disabled=${!resource?.namespaced} onChange=${set("ns")} /></label>
    </form></section>
    <section class="card"><h2>Why, or why not</h2><${Verdict} subject=${form.subject} question=${question} ns=${ns} /></section>
    <section class="card"><h2>Subjects that may</h2><${Subjects} question=${question} ns=${ns} /></section>
    <${Rules} /></div>`;
}
