//! `kubernetes_build_info`, and what it says, which `/version` says as well.

use crate::{Family, Page, Sample};

/// What `/version` and the metric name as the version of Go.
pub const GO_VERSION: &str = "none (rust)";
/// What they name as the compiler.
pub const COMPILER: &str = "rustc";
/// The minor version of Kubernetes.
pub const MINOR: &str = "37";
/// The same as a number.
pub const MINOR_NUMBER: u32 = match u32::from_str_radix(MINOR, 10) {
    Ok(number) => number,
    Err(_) => panic!("MINOR is a number"),
};

const VERSION: Family = Family::gauge(
    "kubernetes_build_info",
    "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
);

/// `v1.37.0+kaji.0.1.0`
#[must_use]
pub fn git_version() -> String {
    format!("v1.{MINOR}.0+kaji.{}", env!("CARGO_PKG_VERSION"))
}

/// `linux/amd64`
#[must_use]
pub fn platform() -> String {
    let processor = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{}/{processor}", std::env::consts::OS)
}

impl Page {
    /// Adds the version.
    pub fn build_info(&mut self) {
        let labels = [
            ("build_date", option_env!("KAJI_BUILD_DATE").unwrap_or("1970-01-01T00:00:00Z")),
            ("compiler", COMPILER),
            ("git_commit", option_env!("KAJI_GIT_COMMIT").unwrap_or("")),
            ("git_tree_state", "clean"),
            ("git_version", &git_version()),
            ("go_version", GO_VERSION),
            ("major", "1"),
            ("minor", MINOR),
            ("platform", &platform()),
        ];
        self.family(VERSION, [Sample::new(&labels, 1.0)]);
    }
}
