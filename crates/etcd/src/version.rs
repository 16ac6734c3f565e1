//! Which versions of etcd report the progress of watches correctly when it is requested.
//!
//! Others may report a revision before they have sent its events. A watch of such an etcd follows the whole key space, in which
//! each revision has an event; so its progress needs no report.
//!
//! Source: upstream's `feature_support_checker.go`; etcd issues 15220 and 17507.

/// Whether progress that is requested can be relied on. A version that is not understood is not.
#[must_use]
pub fn reports_progress(version: &str) -> bool {
    let Some(version) = parse(version) else { return false };
    version >= (3, 5, 13) || ((3, 4, 31)..(3, 5, 0)).contains(&version)
}

/// Major, minor, patch. A pre-release comes before its release.
fn parse(version: &str) -> Option<(u32, u32, u32)> {
    let (release, pre) = match version.split_once(['-', '+']) {
        Some((release, _)) => (release, version.contains('-')),
        None => (version, false),
    };
    let mut parts = release.trim_start_matches('v').split('.').map(str::parse);
    let (major, minor, patch) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    if parts.next().is_some() {
        return None;
    }
    Some(match (pre, patch) {
        (true, 0) => (major, u32::checked_sub(minor, 1)?, u32::MAX),
        (true, patch) => (major, minor, patch - 1),
        (false, patch) => (major, minor, patch),
    })
}

#[cfg(test)]
mod tests {
    use super::reports_progress;

    #[test]
    fn versions_that_report_progress_correctly() {
        for version in ["3.4.31", "3.4.40", "3.5.13", "3.5.21", "3.6.0", "3.6.5", "v3.5.13", "4.0.0"] {
            assert!(reports_progress(version), "{version}");
        }
        let others =
            ["3.4.23", "3.4.30", "3.4.31-rc.0", "3.5.0", "3.5.12", "3.5.13-rc.1", "3.3.27", "", "x", "3.5"];
        for version in others {
            assert!(!reports_progress(version), "{version}");
        }
    }
}
