//! Kubeconfig files, and the clients that they describe.
//!
//! Invariant: files and commands that a kubeconfig names by relative paths are relative to its directory, as in client-go.

use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use std::path::{MAIN_SEPARATOR, Path};

/// The configuration of a client for the current context of a kubeconfig file.
///
/// # Errors
/// When the file cannot be read, or has no usable current context.
pub async fn client_config(file: &Path) -> Result<kube::Config, String> {
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(read(file)?, &options).await;
    config.map_err(|error| format!("{}: {error}", file.display()))
}

/// Reads a kubeconfig file. The paths in it can be opened from any directory.
///
/// # Errors
/// When the file cannot be read, or is no kubeconfig.
pub fn read(file: &Path) -> Result<Kubeconfig, String> {
    let error = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
    let text = std::fs::read_to_string(file).map_err(|e| error(&e))?;
    let directory = file.parent().unwrap_or(Path::new(""));
    kaji_files::yaml::decode_with(&text, |document| resolve_paths(document, directory)).map_err(|e| error(&e))
}

/// Makes files that a kubeconfig names relative to its directory ones that can be opened from any. A command without a separator
/// is looked up in `PATH`.
fn resolve_paths(kubeconfig: &mut Value, directory: &Path) {
    for (list, part, files) in [
        ("clusters", "cluster", &["certificate-authority"][..]),
        ("users", "user", &["client-certificate", "client-key", "tokenFile"]),
    ] {
        let entries = kubeconfig.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for part in entries.filter_map(|entry| entry.get_mut(part)) {
            for file in files {
                part.get_mut(file).into_iter().for_each(|path| resolve(path, directory));
            }
            let command = part.pointer_mut("/exec/command");
            let path = command.filter(|command| command.as_str().is_some_and(|c| c.contains(MAIN_SEPARATOR)));
            path.into_iter().for_each(|path| resolve(path, directory));
        }
    }
}

fn resolve(path: &mut Value, directory: &Path) {
    if let Some(text) = path.as_str().filter(|text| !text.is_empty()) {
        *path = directory.join(text).to_string_lossy().into_owned().into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_commands_with_a_separator_are_relative_to_the_kubeconfig() {
        let text = "clusters: [{name: c, cluster: {server: s, certificate-authority: ca.pem}}, {name: d}]\n\
                    users:\n- {name: u, user: {client-certificate: /abs.pem, client-key: '', tokenFile: t/token, exec: {command: bin/login}}}\n\
                    - {name: v, user: {exec: {command: login}, client-key: null}}\ncontexts: null\n";
        let read =
            |text: &str| kaji_files::yaml::decode_with(text, |v| resolve_paths(v, Path::new("/etc/k")));
        expect_test::expect![[r#"{"clusters":[{"cluster":{"certificate-authority":"/etc/k/ca.pem","server":"s"},"name":"c"},{"name":"d"}],"users":[{"name":"u","user":{"client-certificate":"/abs.pem","client-key":"","exec":{"command":"/etc/k/bin/login"},"tokenFile":"/etc/k/t/token"}},{"name":"v","user":{"exec":{"command":"login"}}}]}"#]]
        .assert_eq(&read(text).map(|v: Value| v.to_string()).unwrap());
        for other in ["- a", "text", "clusters: {a: b}", "users: [a, 1]", ""] {
            read(other).map(|_: Value| ()).unwrap();
        }
        let kubeconfig: Kubeconfig = kaji_files::yaml::decode_with(text, |_| {}).unwrap();
        assert_eq!((kubeconfig.clusters.len(), kubeconfig.auth_infos.len()), (2, 2));
    }
}
