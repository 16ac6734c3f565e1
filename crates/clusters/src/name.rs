//! Names of clusters.
//!
//! Invariant: a name is a DNS label, so it can be part of a path, of a kubeconfig context and of a host name.

use std::{fmt, str::FromStr};

/// The longest name: contexts and directories have prefixes.
const LONGEST: usize = 50;
/// The cluster that `kaji up` starts without a name.
const DEFAULT: &str = "default";

/// A cluster's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClusterName(String);

impl ClusterName {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the cluster that has no name.
    pub fn is_default(&self) -> bool {
        self.0 == DEFAULT
    }

    /// The name of the cluster's context, cluster and user in kubeconfig files.
    pub fn context(&self) -> String {
        match self.is_default() {
            true => kaji_files::kubeconfig::NAME.to_owned(),
            false => format!("{}-{}", kaji_files::kubeconfig::NAME, self.0),
        }
    }
}

impl Default for ClusterName {
    fn default() -> ClusterName {
        ClusterName(DEFAULT.to_owned())
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ClusterName {
    type Err = String;

    fn from_str(text: &str) -> Result<ClusterName, String> {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let (first, last) = (text.chars().next(), text.chars().last());
        let is_label = first.is_some_and(allowed)
            && last.is_some_and(allowed)
            && text.chars().all(|c| allowed(c) || c == '-')
            && text.len() <= LONGEST;
        match is_label {
            true => Ok(ClusterName(text.to_owned())),
            false => Err(format!(
                "a name has at most {LONGEST} lower case letters, digits and hyphens, and begins and ends with a letter or digit"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_labels() {
        for good in ["a", "dev-1", "0x", "default"] {
            assert_eq!(good.parse::<ClusterName>().unwrap().as_str(), good);
        }
        let long = "a".repeat(LONGEST + 1);
        for bad in ["", "-a", "a-", "A", "a/b", "..", "a.b", "ü", "a b", &long] {
            assert!(bad.parse::<ClusterName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_the_default_cluster_has_the_plain_context() {
        assert_eq!(ClusterName::default().context(), "kaji");
        assert_eq!("dev".parse::<ClusterName>().unwrap().context(), "kaji-dev");
    }
}
