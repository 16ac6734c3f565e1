// What the tests' cluster has: things that work, and things that are wrong in different ways.
const labels = (app) => ({ app });
const pod = (name, spec = {}, annotations = {}) => ["/api/v1/namespaces/shop/pods/" + name, {
  apiVersion: "v1", kind: "Pod", metadata: { name, labels: labels(name), annotations }, spec: { containers: [{ name: "main", image: "app:1" }], ...spec },
}];
const deployment = (name, replicas, container = {}, more = {}) => [`/apis/apps/v1/namespaces/shop/deployments/${name}`, {
  apiVersion: "apps/v1", kind: "Deployment", metadata: { name, labels: labels(name) },
  spec: { replicas, selector: { matchLabels: labels(name) }, template: { metadata: { labels: labels(name) }, spec: { containers: [{ name: "main", image: "app:1", ...container }], ...more } } },
}];

export const objects = [
  ["/api/v1/namespaces/shop", { apiVersion: "v1", kind: "Namespace", metadata: { name: "shop" } }],
  ["/api/v1/namespaces/shop/configmaps/settings", { apiVersion: "v1", kind: "ConfigMap", metadata: { name: "settings" }, data: { currency: "EUR" } }],
  deployment("web", 3, { resources: { requests: { cpu: "100m", memory: "64Mi" } }, envFrom: [{ configMapRef: { name: "settings" } }] }),
  deployment("talk", 2, { command: ["sh", "-c", "echo hello; sleep 1; echo world; sleep 100000"] }),
  deployment("crash", 2, { command: ["sh", "-c", "exit 3"] }),
  deployment("missing-image", 1, { image: "nowhere.example/app:404" }),
  deployment("wants-secret", 1, { envFrom: [{ secretRef: { name: "absent" } }] }),
  pod("too-big", { containers: [{ name: "main", image: "app:1", resources: { requests: { cpu: "4000" } } }] }),
  ["/api/v1/namespaces/shop/services/web", { apiVersion: "v1", kind: "Service", metadata: { name: "web" }, spec: { selector: labels("web"), ports: [{ port: 80 }] } }],
  ["/api/v1/namespaces/shop/services/lonely", { apiVersion: "v1", kind: "Service", metadata: { name: "lonely" }, spec: { selector: labels("wep"), ports: [{ port: 80 }] } }],
  ["/apis/networking.k8s.io/v1/namespaces/shop/ingresses/front", { apiVersion: "networking.k8s.io/v1", kind: "Ingress", metadata: { name: "front" }, spec: { rules: [{ host: "shop.example", http: { paths: [{ path: "/", pathType: "Prefix", backend: { service: { name: "web", port: { number: 80 } } } }] } }] } }],
  ["/apis/apiextensions.k8s.io/v1/customresourcedefinitions/anvils.forge.example.com", {
    apiVersion: "apiextensions.k8s.io/v1", kind: "CustomResourceDefinition", metadata: { name: "anvils.forge.example.com" },
    spec: {
      group: "forge.example.com", scope: "Namespaced", names: { plural: "anvils", singular: "anvil", kind: "Anvil", shortNames: ["av"] },
      versions: [{
        name: "v1", served: true, storage: true, subresources: { status: {} },
        additionalPrinterColumns: [{ name: "Weight", type: "integer", jsonPath: ".spec.weight" }, { name: "Temper", type: "string", jsonPath: ".spec.temper" }],
        schema: { openAPIV3Schema: { type: "object", properties: {
          spec: { type: "object", description: "What is asked for.", properties: { weight: { type: "integer", description: "In kilograms." }, temper: { type: "string", enum: ["soft", "hard"] } } },
          status: { type: "object", "x-kubernetes-preserve-unknown-fields": true } } } },
      }],
    },
  }],
  ["/apis/rbac.authorization.k8s.io/v1/namespaces/shop/roles/reader", { apiVersion: "rbac.authorization.k8s.io/v1", kind: "Role", metadata: { name: "reader" }, rules: [{ apiGroups: [""], resources: ["pods", "pods/log", "events"], verbs: ["get", "list", "watch"] }] }],
  ["/apis/rbac.authorization.k8s.io/v1/namespaces/shop/rolebindings/readers", { apiVersion: "rbac.authorization.k8s.io/v1", kind: "RoleBinding", metadata: { name: "readers" }, roleRef: { apiGroup: "rbac.authorization.k8s.io", kind: "Role", name: "reader" }, subjects: [{ kind: "ServiceAccount", name: "visitor", namespace: "shop" }, { kind: "User", name: "alice", apiGroup: "rbac.authorization.k8s.io" }] }],
  ["/api/v1/namespaces/shop/serviceaccounts/visitor", { apiVersion: "v1", kind: "ServiceAccount", metadata: { name: "visitor" } }],
];

export const anvils = ["small", "large"].map((name, i) => [`/apis/forge.example.com/v1/namespaces/shop/anvils/${name}`, {
  apiVersion: "forge.example.com/v1", kind: "Anvil", metadata: { name }, spec: { weight: 20 + i * 80, temper: i ? "hard" : "soft" },
}]);
