//! Upstream's feature gates, each with its stage and default, and what this server does about it: most of them cannot be switched
//! here, since there is one behaviour, the default one.
//!
//! Invariants: a gate may be set to what this server does anyway, as upstream accepts it; everything else is refused by name, and
//! so is a gate that upstream has not.

/// Lines `STAGE on|off [locked] [but here|but not here]:`, each followed by indented lines with names.
const GATES: &str = include_str!("gates.txt");

/// A gate as upstream has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gate {
    default: bool,
    locked: bool,
    /// What this server does.
    here: bool,
}

fn find(name: &str) -> Option<Gate> {
    let mut gate = None;
    for line in GATES.lines().filter(|line| !line.starts_with('#')) {
        if let Some(names) = line.strip_prefix("    ") {
            if names.split(' ').any(|other| other == name) {
                return gate;
            }
            continue;
        }
        let words = || line.trim_end_matches(':').split(' ');
        let has = |word: &str| words().any(|other| other == word);
        gate = Some(Gate { default: has("on"), locked: has("locked"), here: has("on") != has("but") });
    }
    None
}

/// Whether a gate may have a value.
///
/// # Errors
/// For gates that are unknown, locked to the other value (both upstream's texts), or that this server cannot switch.
pub fn check(name: &str, on: bool) -> Result<(), String> {
    match (name, on) {
        ("AllAlpha", false) => return Ok(()),
        ("AllAlpha" | "AllBeta", true) => return Err(lacks(name)),
        ("AllBeta", false) => return Err(stays(name)),
        _ => {}
    }
    let Some(gate) = find(name) else { return Err(format!("unrecognized feature gate: {name}")) };
    if gate.locked && on != gate.default {
        let locked = gate.default;
        return Err(format!("cannot set feature gate {name} to {on}, feature is locked to {locked}"));
    }
    match (on, gate.here) {
        (true, false) => Err(lacks(name)),
        (false, true) => Err(stays(name)),
        _ => Ok(()),
    }
}

fn lacks(name: &str) -> String {
    format!("this server lacks what feature gate {name} switches on")
}

fn stays(name: &str) -> String {
    format!("this server cannot switch off feature gate {name}: it always does what the gate switches on")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        let names = || GATES.lines().filter_map(|line| line.strip_prefix("    ")).flat_map(|l| l.split(' '));
        assert!(names().count() > 230 && names().all(|name| find(name).is_some()));
        let mut sorted: Vec<&str> = names().collect();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), names().count(), "a gate has one line");
        let gate = |default, locked, here| Some(Gate { default, locked, here });
        assert_eq!(find("ImageVolume"), gate(true, true, true));
        assert_eq!(find("HPAScaleToZero"), gate(true, false, true));
        assert_eq!(find("CompositePodGroup"), gate(false, false, false));
        assert_eq!(find("KubeProxyIPVS"), gate(true, false, false));
        assert_eq!(find("DeclarativeValidationTakeover"), gate(false, true, false));
    }

    #[test]
    fn gates_may_have_the_value_that_they_have() {
        for (name, on) in [
            ("ImageVolume", true),
            ("InPlacePodVerticalScaling", true),
            ("WatchList", true),
            ("HPAScaleToZero", true),
            ("KMSv1", false),
            ("KubeProxyIPVS", false),
            ("RuntimeClassInImageCriApi", false),
            ("ClusterTrustBundle", true),
            ("AllAlpha", false),
        ] {
            assert_eq!(check(name, on), Ok(()), "{name}={on}");
        }
    }

    #[test]
    fn other_values_are_refused_by_name() {
        for (name, on, error) in [
            ("ImageVolume", false, "cannot set feature gate ImageVolume to false, feature is locked to true"),
            ("CompositePodGroup", true, "this server lacks what feature gate CompositePodGroup switches on"),
            ("KubeProxyIPVS", true, "this server lacks what feature gate KubeProxyIPVS switches on"),
            (
                "WatchList",
                false,
                "this server cannot switch off feature gate WatchList: it always does what the gate switches on",
            ),
            (
                "ClusterTrustBundle",
                false,
                "this server cannot switch off feature gate ClusterTrustBundle: it always does what the gate switches on",
            ),
            (
                "AllBeta",
                false,
                "this server cannot switch off feature gate AllBeta: it always does what the gate switches on",
            ),
            ("SidecarContainers", true, "unrecognized feature gate: SidecarContainers"),
            ("on", true, "unrecognized feature gate: on"),
            ("", true, "unrecognized feature gate: "),
        ] {
            assert_eq!(check(name, on), Err(error.to_owned()));
        }
    }
}
