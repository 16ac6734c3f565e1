//! Feature gates, and API versions that are off by default: what `--feature-gates` and `--runtime-config` say.
//!
//! Invariant: an item that would have no effect is refused. A gate that this server has not is refused by name, unless it is
//! switched as it is anyway; so is a version.
//!
//! Facts as of Kubernetes 1.37: `GenericWorkload` is beta and off; it has taken in `GangScheduling` and `WorkloadAwarePreemption`
//! of 1.36, which are gates no more. The other gates are in [`gates`].

mod gates;

use std::collections::BTreeSet;

/// The gates that can be switched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// `GenericWorkload`: the kinds Workload and PodGroup, `spec.schedulingGroup` of pods, and groups that are scheduled together.
    pub generic_workload: bool,
}

impl Features {
    /// Everything that can be switched on.
    pub const ALL: Features = Features { generic_workload: true };

    /// Reads items `NAME=BOOL`; of several about one gate the last counts.
    ///
    /// # Errors
    /// For an unknown gate, a value that is no boolean, and a gate that cannot have the value.
    pub fn parse<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> Result<Features, String> {
        let mut features = Features::default();
        for item in items {
            let item = item.as_ref().trim();
            if item.is_empty() {
                continue;
            }
            let Some((name, value)) = item.split_once('=') else {
                return Err(format!("missing bool value for {item}"));
            };
            let (name, value) = (name.trim(), value.trim());
            let Some(on) = boolean(value) else {
                return Err(format!("invalid value of {name}={value}, err: it must be true or false"));
            };
            match name {
                "GenericWorkload" => features.generic_workload = on,
                _ => gates::check(name, on)?,
            }
        }
        Ok(features)
    }
}

/// The truth values of Go's flags.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The versions of built-in kinds that are served although they are off by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedVersions {
    on: BTreeSet<(&'static str, &'static str)>,
}

/// The versions that are off by default: group and version.
const OFF: [(&str, &str); 4] = [
    ("resource.k8s.io", "v1beta1"),
    ("resource.k8s.io", "v1beta2"),
    ("scheduling.k8s.io", "v1alpha3"),
    ("scheduling.k8s.io", "v1beta1"),
];

impl ServedVersions {
    /// With every version that there is.
    pub fn all() -> ServedVersions {
        ServedVersions { on: OFF.into() }
    }

    /// Whether a version that is off by default is on.
    pub fn includes(&self, group: &str, version: &str) -> bool {
        self.on.iter().any(|on| *on == (group, version))
    }

    /// Reads items `GROUP/VERSION=BOOL` and `api/all|ga|beta|alpha|legacy=BOOL`; the latter count less, whatever the order.
    ///
    /// # Errors
    /// For versions that this server has not, or has always.
    pub fn parse<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> Result<ServedVersions, String> {
        let mut read = vec![];
        for item in items {
            let item = item.as_ref().trim();
            if item.is_empty() {
                continue;
            }
            let (name, value) = item.split_once('=').unwrap_or((item, "true"));
            let on = match value {
                "" => true,
                value => boolean(value)
                    .ok_or_else(|| format!("invalid value of {name}={value}: it must be true or false"))?,
            };
            let Some((group, version)) = name.split_once('/') else {
                return Err(format!("unknown api groups {name}"));
            };
            read.push((group.to_owned(), version.to_owned(), on));
        }
        read.sort_by_key(|(group, version, _)| (group != "api", version != "all"));
        let mut served = ServedVersions::default();
        for (group, version, on) in read {
            served.switch(&group, &version, on)?;
        }
        Ok(served)
    }

    fn switch(&mut self, group: &str, version: &str, on: bool) -> Result<(), String> {
        let stage = |version: &str| match () {
            () if version.contains("alpha") => "alpha",
            () if version.contains("beta") => "beta",
            () => "ga",
        };
        let concerned: Vec<_> = OFF
            .into_iter()
            .filter(|(g, v)| match group {
                "api" => version == "all" || stage(v) == version,
                _ => (*g, *v) == (group, version),
            })
            .collect();
        let always = match group {
            "api" => matches!(version, "all" | "ga" | "legacy"),
            _ => concerned.is_empty() && stage(version) == "ga",
        };
        if always && !on {
            return Err(format!("{group}/{version} cannot be switched off: the server's own parts need it"));
        }
        if group != "api" && concerned.is_empty() && !always && on {
            return Err(format!("{group}/{version} is not served by this server"));
        }
        for version in concerned {
            match on {
                true => self.on.insert(version),
                false => self.on.remove(&version),
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_switched_or_refused() {
        let on = |items: &[&str]| Features::parse(items).map(|f| f.generic_workload);
        assert_eq!(on(&[]), Ok(false));
        assert_eq!(on(&["GenericWorkload=true", "AllAlpha=false"]), Ok(true));
        assert_eq!(on(&["GenericWorkload=true", "GenericWorkload=false"]), Ok(false));
        for (item, error) in [
            ("GangScheduling=true", "unrecognized feature gate: GangScheduling"),
            ("CompositePodGroup=true", "this server lacks what feature gate CompositePodGroup switches on"),
            ("Unheard=true", "unrecognized feature gate: Unheard"),
            ("GenericWorkload", "missing bool value for GenericWorkload"),
            ("GenericWorkload=yes", "invalid value of GenericWorkload=yes, err: it must be true or false"),
        ] {
            assert_eq!(on(&[item]), Err(error.to_owned()));
        }
    }

    #[test]
    fn versions_are_switched_or_refused() {
        let served = |items: &[&str]| {
            ServedVersions::parse(items).map(|s| {
                s.on.into_iter().map(|(g, v)| format!("{}/{v}", &g[..1])).collect::<Vec<_>>().join(",")
            })
        };
        assert_eq!(served(&[]).unwrap(), "");
        assert_eq!(served(&["scheduling.k8s.io/v1beta1"]).unwrap(), "s/v1beta1");
        assert_eq!(served(&["", " scheduling.k8s.io/v1beta1", ""]).unwrap(), "s/v1beta1");
        assert_eq!(served(&["api/all=true"]).unwrap(), "r/v1beta1,r/v1beta2,s/v1alpha3,s/v1beta1");
        let beta = "r/v1beta1,r/v1beta2,s/v1beta1";
        assert_eq!(served(&["api/beta=true", "api/alpha=false", "apps/v1=true"]).unwrap(), beta);
        assert_eq!(served(&["scheduling.k8s.io/v1alpha3=false", "api/all=true"]).unwrap(), beta);
        assert_eq!(served(&["api/beta", "resource.k8s.io/v1beta1=false"]).unwrap(), "r/v1beta2,s/v1beta1");
        for bad in ["apps/v1=false", "api/all=false", "resource.k8s.io/v1alpha3=true", "apps", "api/beta=x"] {
            assert!(served(&[bad]).is_err(), "{bad}");
        }
    }
}
