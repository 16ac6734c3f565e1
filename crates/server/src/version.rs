//! `/version`: the emulated version of Kubernetes, and the version of Kaji.

use kaji_exposition::{COMPILER, GO_VERSION, MINOR, git_version, platform};
use serde_json::Value;

/// `GET /version` (apimachinery `version.Info`), indented as upstream writes it.
pub fn info() -> String {
    let (git_version, platform) = (git_version(), platform());
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
        ("goVersion", GO_VERSION),
        ("compiler", COMPILER),
        ("platform", &platform),
    ];
    let lines: Vec<String> =
        members.iter().map(|(key, text)| format!("  {key:?}: {}", Value::from(*text))).collect();
    format!("{{\n{}\n}}", lines.join(",\n"))
}
