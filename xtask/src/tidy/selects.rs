//! `select!` in what runs in a simulation (`kaji sim`) begins with `biased;`: without it tokio draws the order of the branches from
//! randomness that no seed gives, and two runs of a seed differ. The first branch that is ready wins: what may be ready
//! for ever comes last.
//!
//! Invariant: a `select!` in a comment is no complaint; the list of exceptions only shrinks.

/// Beginnings of the paths of code that runs in a simulation.
const PLACES: &[&str] = &[
    "crates/access/src/",
    "crates/admission/src/",
    "crates/aggregator/src/",
    "crates/apiextensions/src/",
    "crates/audit/src/",
    "crates/auth/src/",
    "crates/builtins/src/",
    "crates/controllers/src/",
    "crates/controlplane/src/",
    "crates/decisions/src/",
    "crates/encryption/src/",
    "crates/engine/src/",
    "crates/flowcontrol/src/",
    "crates/history/src/",
    "crates/kaji/src/",
    "crates/kubelet/src/simulated",
    "crates/meta/src/",
    "crates/options/src/",
    "crates/outbound/src/",
    "crates/quota/src/",
    "crates/refusals/src/",
    "crates/resource/src/",
    "crates/resource-metrics/src/",
    "crates/runtime/src/",
    "crates/scheduler/src/",
    "crates/server/src/",
    "crates/sim/src/",
    "crates/storage/src/",
    "crates/store/src/",
    "crates/traces/src/",
];

/// Files there that wait for sockets, signals and other processes, which a simulation has none of. Only remove lines here.
pub const EXCEPTIONS: &[&str] = &[
    "crates/kaji/src/component_commands.rs",
    "crates/kaji/src/console_command.rs",
    "crates/kaji/src/envtest_command.rs",
    "crates/kaji/src/main.rs",
    "crates/kaji/src/node_commands.rs",
    "crates/kaji/src/test_command.rs",
    "crates/kaji/src/up_command.rs",
    "crates/outbound/src/reverse_proxy.rs",
    "crates/server/src/listen.rs",
    "crates/server/src/websocket/watch.rs",
];

/// Whether a file runs in a simulation and has a `select!` without `biased;`.
pub fn draws(path: &str, text: &str) -> bool {
    PLACES.iter().any(|place| path.starts_with(place))
        && text.match_indices("select!").any(|(at, name)| {
            let line = text[..at].rsplit('\n').next().unwrap_or_default();
            let body = text[at + name.len()..].trim_start().strip_prefix(['{', '(', '[']);
            !line.contains("//") && body.is_some_and(|body| !is_biased(body))
        })
}

/// Whether the body of a `select!` begins with `biased;`, perhaps below comments.
fn is_biased(body: &str) -> bool {
    let first = body.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("//"));
    first.is_some_and(|line| line.starts_with("biased;"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_draws_the_order_of_branches() {
        let simulated = "crates/runtime/src/new.rs";
        for (text, expected) in [
            ("tokio::select! { () = a => {} }", true),
            ("tokio::select! {\n    () = a => {}\n}", true),
            ("select!(a, b)", true),
            ("tokio::select! { biased; () = a => {} }", false),
            ("tokio::select! {\n    // Why.\n    biased;\n    () = a => {}\n}", false),
            ("let a = select! {\n    biased;\n    a = a => a,\n};\nselect! { b = b => b }", true),
            ("// select! { draws }\n//! and `tokio::select!`", false),
            ("fn select() {}", false),
        ] {
            assert_eq!(draws(simulated, text), expected, "{text}");
        }
        for module in ["crates/kubelet/src/simulated.rs", "crates/kubelet/src/simulated/new.rs"] {
            assert!(draws(module, "select! { a = a => a }"), "{module}");
        }
        assert!(!draws("crates/node/src/new.rs", "select! { a = a => a }"));
        assert!(!draws("crates/runtime/tests/it/new.rs", "select! { a = a => a }"));
    }
}
