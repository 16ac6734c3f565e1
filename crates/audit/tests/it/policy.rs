//! Policies: how they are read, what is wrong with them, and which requests they record.

use expect_test::expect;
use kaji_audit::{Level, Policy, Stage};
use kaji_auth::Attributes;
use kaji_resource::UserInfo;
use proptest::prelude::*;

fn policy(rules: &str) -> Policy {
    let (policy, strict) =
        Policy::parse(&format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}")).unwrap();
    assert_eq!(strict, None);
    policy
}

fn refused(text: &str) -> String {
    Policy::parse(text).unwrap_err().to_string()
}

#[test]
fn what_is_no_policy_is_refused() {
    let cases = [
        "",
        "rules:\n- level: Metadata\n",
        "apiVersion: audit.k8s.io/v1\nkind: Policy\n",
        "apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: []\n",
        "apiVersion: audit.k8s.io/v1\nkind: Event\n",
        "apiVersion: audit.k8s.io/v1\nrules: all\n",
        "apiVersion: audit.k8s.io/v1\nrules: [all]\n",
        "apiVersion: audit.k8s.io/v1\nrules: [{users: you}]\n",
        "apiVersion: audit.k8s.io/v1\nrules: [{users: [1]}]\n",
        "apiVersion: audit.k8s.io/v1\nrules: [{resources: [pods]}]\n",
        "apiVersion: audit.k8s.io/v1\nrules: [{resources: [{group: 1}]}]\n",
        "apiVersion: audit.k8s.io/v1\nomitManagedFields: maybe\n",
        "- a\n",
    ];
    let got: Vec<String> = cases.into_iter().map(refused).collect();
    expect![[r#"
        unknown group version field audit.k8s.io/__internal, Kind=Policy in policy
        unknown group version field audit.k8s.io/__internal, Kind=Policy in policy
        loaded illegal policy with 0 rules
        failed decoding: no kind "Policy" is registered for version "audit.k8s.io/v1beta1"
        failed decoding: no kind "Event" is registered for version "audit.k8s.io/v1"
        failed decoding: json: cannot unmarshal string into Go struct field Policy.rules of type []v1.PolicyRule
        failed decoding: json: cannot unmarshal string into Go struct field Policy.rules of type v1.PolicyRule
        failed decoding: json: cannot unmarshal string into Go struct field PolicyRule.rules.users of type []string
        failed decoding: json: cannot unmarshal number into Go struct field PolicyRule.rules.users of type string
        failed decoding: json: cannot unmarshal string into Go struct field PolicyRule.rules.resources of type v1.GroupResources
        failed decoding: json: cannot unmarshal number into Go struct field GroupResources.rules.resources.group of type string
        failed decoding: json: cannot unmarshal string into Go struct field Policy.omitManagedFields of type bool
        failed decoding: couldn't get version/kind; the file is no object"#]].assert_eq(&got.join("\n"));
    assert!(refused("a: [").starts_with("failed decoding: couldn't get version/kind; yaml: "));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let rules = [
        "{}",
        "{level: FooBar}",
        "{level: Metadata, namespaces: [default], nonResourceURLs: [/logs*]}",
        "{level: Metadata, resources: [{resources: [secrets]}], nonResourceURLs: [/logs*]}",
        "{level: Metadata, resources: [{group: rbac.authorization.k8s.io/v1beta1, resources: [roles]}]}",
        "{level: Metadata, nonResourceURLs: [logs, '/healthz*']}",
        "{level: Metadata, nonResourceURLs: ['']}",
        "{level: Metadata, nonResourceURLs: ['/logs/*/*']}",
        "{level: Metadata, nonResourceURLs: ['/logs/*.log']}",
        "{level: Metadata, resources: [{resourceNames: [leader]}]}",
        "{level: Metadata, omitStages: [foo]}",
    ];
    let mut got: Vec<String> = rules
        .into_iter()
        .map(|rule| refused(&format!("apiVersion: audit.k8s.io/v1\nrules: [{{level: None}}, {rule}]\n")))
        .collect();
    got.push(refused("apiVersion: audit.k8s.io/v1\nomitStages: [foo, Panic]\nrules: [{level: x}]\n"));
    expect![[r#"
        rules[1].level: Required value
        rules[1].level: Unsupported value: "FooBar": supported values: "None", "Metadata", "Request", "RequestResponse"
        rules[1].nonResourceURLs: Invalid value: ["/logs*"]: rules cannot apply to both regular resources and non-resource URLs
        rules[1].nonResourceURLs: Invalid value: ["/logs*"]: rules cannot apply to both regular resources and non-resource URLs
        rules[1].resources.group: Invalid value: "rbac.authorization.k8s.io/v1beta1": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
        rules[1].nonResourceURLs[0]: Invalid value: "logs": non-resource URL rules must begin with a '/' character
        rules[1].nonResourceURLs[0]: Invalid value: "": non-resource URL rules must begin with a '/' character
        rules[1].nonResourceURLs[0]: Invalid value: "/logs/*/*": non-resource URL wildcards '*' must be the final character of the rule
        rules[1].nonResourceURLs[0]: Invalid value: "/logs/*.log": non-resource URL wildcards '*' must be the final character of the rule
        rules[1].resources.resourceNames: Invalid value: ["leader"]: using resourceNames requires at least one resource
        rules[1].omitStages[0]: Invalid value: "foo": allowed stages are RequestReceived,ResponseStarted,ResponseComplete,Panic
        [omitStages[0]: Invalid value: "foo": allowed stages are RequestReceived,ResponseStarted,ResponseComplete,Panic, rules[0].level: Unsupported value: "x": supported values: "None", "Metadata", "Request", "RequestResponse"]"#]].assert_eq(&got.join("\n"));
}

#[test]
fn what_a_strict_reader_minds_is_said() {
    let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nextra: 1\nrules:\n- level: None\n  resources:\n  - group: coordination.k8s.io\n    resources: [leases]\n    verbs: [watch]\n";
    let (_, strict) = Policy::parse(text).unwrap();
    expect![[r#"strict decoding error: unknown field "extra", unknown field "rules[0].resources[0].verbs""#]]
        .assert_eq(&strict.unwrap());
    let text = "apiVersion: audit.k8s.io/v1\nrules:\n- level: None\n  level: Metadata\n";
    let (policy, strict) = Policy::parse(text).unwrap();
    assert!(strict.unwrap().contains("duplicate"));
    // The last one counts.
    assert_eq!(policy.evaluate(&Attributes::path(&UserInfo::default(), "get", "/")).level, Level::Metadata);
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let error = Policy::read("/does/not/exist".as_ref()).unwrap_err().to_string();
    assert!(error.starts_with("failed to read file path \"/does/not/exist\": "), "{error}");
}

fn user(name: &str, groups: &[&str]) -> UserInfo {
    UserInfo {
        name: name.into(),
        groups: groups.iter().map(ToString::to_string).collect(),
        ..UserInfo::default()
    }
}

/// `verb group/resource/sub namespace name`, or `verb /path`.
fn request<'a>(user: &'a UserInfo, text: &'a str) -> Attributes<'a> {
    let mut words = text.split(' ');
    let (verb, what) = (words.next().unwrap(), words.next().unwrap());
    if what.starts_with('/') {
        return Attributes::path(user, verb, what);
    }
    let mut parts = what.split(':');
    let (group, resource) = (parts.next().unwrap(), parts.next().unwrap());
    Attributes {
        subresource: parts.next().unwrap_or_default(),
        namespace: words.next().unwrap_or_default(),
        name: words.next().unwrap_or_default(),
        ..Attributes::resource(user, verb, group, resource)
    }
}

/// Which of the requests a rule takes.
fn taken(rule: &str) -> String {
    let tim = user("tim", &["humans"]);
    let requests = [
        "get :pods a x",
        "get :pods:log a x",
        "update apps:deployments:scale b web",
        "get apps:deployments b web",
        "list :nodes",
        "get /healthz",
        "get /healthz/etcd",
        "post /logs/",
    ];
    let policy = policy(&format!("rules:\n- {rule}\n"));
    let hits = requests.into_iter().filter(|r| policy.evaluate(&request(&tim, r)).level != Level::None);
    let hits = hits.collect::<Vec<_>>().join(", ");
    if hits.is_empty() { "nothing".into() } else { hits }
}

#[test]
fn rules_take_what_all_their_fields_take() {
    let rules = [
        "{level: Metadata}",
        "{level: Metadata, users: [tim], userGroups: [robots, humans], verbs: [get]}",
        "{level: Metadata, users: [bob]}",
        "{level: Metadata, userGroups: [robots]}",
        "{level: Metadata, namespaces: [a]}",
        "{level: Metadata, namespaces: ['']}",
        "{level: Metadata, resources: [{group: ''}]}",
        "{level: Metadata, resources: [{group: '*', resources: ['*']}]}",
        "{level: Metadata, resources: [{resources: [pods]}]}",
        "{level: Metadata, resources: [{resources: [pods/log]}]}",
        "{level: Metadata, resources: [{resources: [pods/*]}]}",
        "{level: Metadata, resources: [{group: '*', resources: ['*/scale']}]}",
        "{level: Metadata, resources: [{group: apps, resources: [deployments], resourceNames: [other]}]}",
        "{level: Metadata, resources: [{group: apps, resources: [deployments], resourceNames: [web]}]}",
        "{level: Metadata, nonResourceURLs: ['*']}",
        "{level: Metadata, nonResourceURLs: [/healthz*]}",
        "{level: Metadata, nonResourceURLs: [/healthz, /logs]}",
    ];
    let got: Vec<String> = rules.into_iter().map(|r| format!("{r}\n  {}", taken(r))).collect();
    expect![[r#"
        {level: Metadata}
          get :pods a x, get :pods:log a x, update apps:deployments:scale b web, get apps:deployments b web, list :nodes, get /healthz, get /healthz/etcd, post /logs/
        {level: Metadata, users: [tim], userGroups: [robots, humans], verbs: [get]}
          get :pods a x, get :pods:log a x, get apps:deployments b web, get /healthz, get /healthz/etcd
        {level: Metadata, users: [bob]}
          nothing
        {level: Metadata, userGroups: [robots]}
          nothing
        {level: Metadata, namespaces: [a]}
          get :pods a x, get :pods:log a x
        {level: Metadata, namespaces: ['']}
          list :nodes
        {level: Metadata, resources: [{group: ''}]}
          get :pods a x, get :pods:log a x, list :nodes
        {level: Metadata, resources: [{group: '*', resources: ['*']}]}
          get :pods a x, get :pods:log a x, update apps:deployments:scale b web, get apps:deployments b web, list :nodes
        {level: Metadata, resources: [{resources: [pods]}]}
          get :pods a x
        {level: Metadata, resources: [{resources: [pods/log]}]}
          get :pods:log a x
        {level: Metadata, resources: [{resources: [pods/*]}]}
          get :pods a x, get :pods:log a x
        {level: Metadata, resources: [{group: '*', resources: ['*/scale']}]}
          update apps:deployments:scale b web
        {level: Metadata, resources: [{group: apps, resources: [deployments], resourceNames: [other]}]}
          nothing
        {level: Metadata, resources: [{group: apps, resources: [deployments], resourceNames: [web]}]}
          get apps:deployments b web
        {level: Metadata, nonResourceURLs: ['*']}
          get /healthz, get /healthz/etcd, post /logs/
        {level: Metadata, nonResourceURLs: [/healthz*]}
          get /healthz, get /healthz/etcd
        {level: Metadata, nonResourceURLs: [/healthz, /logs]}
          get /healthz"#]].assert_eq(&got.join("\n"));
}

#[test]
fn the_first_rule_decides_and_stages_add_up() {
    let policy = policy(
        "omitStages: [RequestReceived]\nomitManagedFields: true\nrules:\n\
         - {level: None, users: [bob]}\n\
         - {level: Request, verbs: [get], omitStages: [Panic], omitManagedFields: false}\n\
         - {level: RequestResponse, verbs: [get, list]}\n",
    );
    let show = |name: &str, verb: &str| {
        let user = user(name, &[]);
        let v = policy.evaluate(&Attributes::path(&user, verb, "/"));
        let omitted: Vec<&str> =
            Stage::ALL.into_iter().filter(|s| v.omit.contains(*s)).map(Stage::as_str).collect();
        format!("{name} {verb}: {} {omitted:?} {}", v.level.as_str(), v.omit_managed_fields)
    };
    let got =
        [show("bob", "get"), show("tim", "get"), show("tim", "list"), show("tim", "put"), show("", "get")];
    expect![[r#"
        bob get: None ["RequestReceived"] true
        tim get: Request ["RequestReceived", "Panic"] false
        tim list: RequestResponse ["RequestReceived"] true
        tim put: None ["RequestReceived"] true
         get: Request ["RequestReceived", "Panic"] false"#]]
    .assert_eq(&got.join("\n"));
}

proptest! {
    /// A rule of the whole world at the end changes nothing for what other rules took.
    #[test]
    fn later_rules_do_not_matter(verb in "get|list|watch|create", namespace in "a|b|", level in 1..4_usize) {
        let rules = format!("rules:\n- {{level: {}, verbs: [get, list], namespaces: [a, '']}}\n", Level::ALL[level].as_str());
        let (first, both) = (policy(&rules), policy(&format!("{rules}- {{level: Metadata}}\n")));
        let user = user("tim", &[]);
        let request = Attributes { namespace: &namespace, ..Attributes::resource(&user, &verb, "", "pods") };
        let (one, other) = (first.evaluate(&request).level, both.evaluate(&request).level);
        prop_assert_eq!(other, if one == Level::None { Level::Metadata } else { one });
    }
}
