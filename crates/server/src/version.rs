//! `/version`: the emulated version of Kubernetes, and the version of Kaji.

use serde_json::Value;

/// The minor version of Kubernetes that is emulated.
pub const MINOR: &str = "37";

/// `GET /version` (apimachinery `version.Info`), indented as upstream writes it.
pub fn info() -> String {
    let platform = format!(
        "{}/{}",
        std::env::consts::OS,
        match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            a => a,
        }
    );
    let git_version = git_version();
    let members = [
        ("major", "1"),
        ("minor", MINOR),
        ("emulationMajor", "1"),
        ("emulationMinor", MINOR),
        ("minCompatibilityMajor", "1"),
        ("minCompatibilityMinor", "36"),
        ("gitVersion", &git_version),
        ("gitCommit", option_env!("KAJI_GIT_COMMIT").unwrap_or("")),
        ("gitTreeState", "clean"),
        ("buildDate", option_env!("KAJI_BUILD_DATE").unwrap_or("1970-01-01T00:00:00Z")),
        ("goVersion", "none (rust)"),
        ("compiler", "rustc"),
        ("platform", &platform),
    ];
    let lines: Vec<String> =
        members.iter().map(|(key, text)| format!("  {key:?}: {}", Value::from(*text))).collect();
    format!("{{\n{}\n}}", lines.join(",\n"))
}

/// `v1.37.0+kaji.0.1.0`
pub fn git_version() -> String {
    format!("v1.{MINOR}.0+kaji.{}", env!("CARGO_PKG_VERSION"))
}
