//! Fixtures: flags and files.

use super::*;
use expect_test::expect;

fn flags(enable: &str, disable: &str) -> Flags {
    let list = |text: &str| text.split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect();
    Flags {
        enable: list(enable),
        disable: list(disable),
        config_file: None,
        tolerations: DefaultTolerations::default(),
    }
}

fn running(enable: &str, disable: &str) -> String {
    let joined = |plugins: Vec<&Plugin>| plugins.iter().map(|p| p.name).collect::<Vec<_>>().join(" ");
    enabled(&flags(enable, disable)).map_or_else(|e| e.to_string(), joined)
}

#[test]
fn flags_select_plugins() {
    let all = running("", "");
    assert!(
        all.starts_with("NamespaceLifecycle LimitRanger ServiceAccount ") && all.ends_with(" ResourceQuota")
    );
    assert_eq!(running("LimitRanger", ""), all);
    assert_eq!(running("", "ServiceAccount"), all.replace(" ServiceAccount", ""));
    let refused = [
        running("Nonsense", ""),
        running("", "Nonsense"),
        running("LimitRanger", "LimitRanger"),
        running("", "NamespaceLifecycle"),
    ];
    expect![[r#"
        enable-admission-plugins plugin "Nonsense" is unknown
        disable-admission-plugins plugin "Nonsense" is unknown
        [LimitRanger] in enable-admission-plugins and disable-admission-plugins overlapped
        admission plugin "NamespaceLifecycle" cannot be disabled"#]]
    .assert_eq(&refused.join("\n"));
}

fn read(text: &str, other: &str, path: &Path) -> std::io::Result<String> {
    match path.to_str() {
        Some("/etc/kaji/admission.yaml") => Ok(text.to_owned()),
        Some("/etc/kaji/other.yaml") => Ok(other.to_owned()),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    }
}

fn load_file(text: &str, other: &str) -> Result<Vec<Arc<dyn Admission>>, ConfigError> {
    let flags = Flags { config_file: Some("/etc/kaji/admission.yaml".into()), ..Flags::default() };
    let deps = crate::test_support::deps();
    load_with(&flags, &deps, &|path| read(text, other, path))
}

/// The configuration that `PodSecurity` gets.
fn security(text: &str, other: &str) -> String {
    let read = |path: &Path| read(text, other, path);
    let enabled = enabled(&Flags::default()).unwrap();
    let mut values = read_file(Path::new("/etc/kaji/admission.yaml"), &enabled, &read).unwrap();
    assert_eq!(values.keys().collect::<Vec<_>>(), [&"PodSecurity"], "plugins that are off get nothing");
    let configuration = Configuration { value: values.remove("PodSecurity").unwrap(), read: &read };
    let fields = configuration.of_kind(crate::pod_security::Config::KIND).unwrap();
    crate::pod_security::Config::parse(fields).unwrap().text()
}

const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n";
const SECURITY: &str =
    "apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\n";

#[test]
fn reads_nested_and_named_configuration() {
    let nested = r#"
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: baseline, enforce-version: v1.30, warn: restricted}
    exemptions: {usernames: [a], namespaces: [kube-system], runtimeClasses: [kata]}
- name: EventRateLimit
  configuration: {what: ever}
"#;
    let config = security(&format!("{HEAD}{nested}"), "");
    expect![[r#"Policy { enforce: LevelVersion { level: Baseline, version: Minor(30) }, audit: LevelVersion { level: Privileged, version: Latest }, warn: LevelVersion { level: Restricted, version: Latest } }"#]]
        .assert_eq(&config);
    let named = format!("{HEAD}- {{name: PodSecurity, path: other.yaml}}");
    let other = format!("{SECURITY}defaults: {{audit: baseline}}");
    assert!(security(&named, &other).contains("audit: LevelVersion { level: Baseline"));
}

/// Files from before there was an `AdmissionConfiguration` are for all plugins without a kind, and for no others.
#[test]
fn reads_files_without_kind() {
    let enabled = enabled(&flags("PodNodeSelector,ImagePolicyWebhook,EventRateLimit", "")).unwrap();
    let values = |text: &str| {
        let read = |path: &Path| read(text, "", path);
        read_file(Path::new("/etc/kaji/admission.yaml"), &enabled, &read)
    };
    let both = values("podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: a=b}").unwrap();
    assert_eq!(both.keys().collect::<Vec<_>>(), [&"ImagePolicyWebhook", &"PodNodeSelector"]);
    assert_eq!(values("imagePolicy: {}").unwrap().len(), 2);
    assert!(values("other: {}").is_err());
    assert!(values("kind: AdmissionConfiguration\nimagePolicy: {}").is_err());
}

#[test]
fn rejects_invalid_configuration_files() {
    let named = format!("{HEAD}- {{name: PodSecurity, path: other.yaml}}");
    let security = |rest: &str| load_file(&named, &format!("{SECURITY}{rest}"));
    let all = [
        load_file("apiVersion: v1\nkind: Pod", ""),
        load_file(&format!("{HEAD}- {{name: PodSecurity, path: none.yaml}}"), ""),
        load_file(&format!("{HEAD}- {{name: PodSecurity, huh: 1}}"), ""),
        load_file(&format!("{HEAD}- {{name: LimitRanger, configuration: {{a: b}}}}"), ""),
        load_file(&named, "apiVersion: v1\nkind: PodSecurityConfiguration"),
        security("defaults: {enforce: x, warn-version: '1'}"),
        security("exemptions: {namespaces: [a, a, B], usernames: ['']}"),
        security("exemptions: {what: []}"),
    ];
    let texts: Vec<String> = all.into_iter().map(|r| r.err().unwrap().to_string()).collect();
    expect![[r#"
        admission control configuration "/etc/kaji/admission.yaml": no kind "Pod" is registered for version "v1"
        unable to read admission control configuration from "/etc/kaji/none.yaml" [entity not found]
        admission control configuration "/etc/kaji/admission.yaml": unknown field `huh`, expected one of `name`, `path`, `configuration`
        configuration of admission plugin LimitRanger: it takes no configuration
        configuration of admission plugin PodSecurity: no kind "PodSecurityConfiguration" is registered for version "v1"
        configuration of admission plugin PodSecurity: [defaults.enforce: Invalid value: "x": must be one of privileged, baseline, restricted, defaults.warn-version: Invalid value: "1": must be "latest" or "v1.x"]
        configuration of admission plugin PodSecurity: [exemptions.namespaces[1]: Duplicate value: "a", exemptions.namespaces[2]: Invalid value: "B": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?'), exemptions.usernames[0]: Invalid value: "": username must not be empty]
        configuration of admission plugin PodSecurity: unknown field `what`, expected one of `usernames`, `namespaces`, `runtimeClasses`"#]].assert_eq(&texts.join("\n"));
}
