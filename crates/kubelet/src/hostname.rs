//! The name of this machine as a node.

/// The name of this machine's Node object: the host's name, in lower case as objects' names are.
#[must_use]
pub fn node_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.to_ascii_lowercase(),
    }
}
