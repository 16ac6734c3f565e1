//! Which controllers run: `--controllers` of kube-controller-manager.
//!
//! Invariant: a name that no controller has is refused, never ignored.

/// What is there besides controllers and may be wanted or not all the same.
const SCHEDULER: &str = "scheduler";

/// Which controllers run: `*` for all, `name` for one, `-name` for all others. The `-controller` at a name's end and its
/// dashes may be left out, as in upstream's old names (`garbagecollector`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    wanted: Vec<String>,
    unwanted: Vec<String>,
    others: bool,
}

impl Default for Selection {
    /// All of them.
    fn default() -> Self {
        Selection { wanted: vec![], unwanted: vec![], others: true }
    }
}

fn plain(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    name.strip_suffix("-controller").unwrap_or(&name).replace('-', "")
}

impl Selection {
    /// Reads a list of names, in which the scheduler counts as a controller.
    ///
    /// # Errors
    /// For a name that nothing has.
    pub fn new<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> Result<Selection, String> {
        let mut selection = Selection { wanted: vec![], unwanted: vec![], others: false };
        for item in items {
            let item = item.as_ref().trim();
            let (list, name) = match item.strip_prefix('-') {
                _ if item == "*" => {
                    selection.others = true;
                    continue;
                }
                Some(name) => (&mut selection.unwanted, name),
                None => (&mut selection.wanted, item),
            };
            if name != SCHEDULER && !crate::names().any(|known| plain(known) == plain(name)) {
                return Err(format!("{item:?} is not in the list of known controllers"));
            }
            list.push(plain(name));
        }
        Ok(selection)
    }

    /// None of them.
    pub fn none() -> Selection {
        Selection { wanted: vec![], unwanted: vec![], others: false }
    }

    /// Whether a controller runs.
    pub fn includes(&self, name: &str) -> bool {
        let name = plain(name);
        self.wanted.contains(&name) || (self.others && !self.unwanted.contains(&name))
    }

    /// Whether pods are given nodes.
    pub fn scheduler(&self) -> bool {
        self.includes(SCHEDULER)
    }

    /// Whether nothing runs.
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty() && !self.others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(items: &[&str]) -> Vec<&'static str> {
        let selection = Selection::new(items).unwrap();
        crate::names().filter(|name| selection.includes(name)).collect()
    }

    #[test]
    fn reads_as_upstream() {
        assert_eq!(running(&["*"]).len(), crate::names().count());
        assert_eq!(running(&[]), Vec::<&str>::new());
        assert_eq!(
            running(&["garbagecollector", "namespace-controller", "endpoint-slice"]),
            ["endpointslice-controller", "garbage-collector-controller", "namespace-controller"]
        );
        let but_one = running(&["*", "-deployment-controller"]);
        assert_eq!(but_one.len(), crate::names().count() - 1);
        assert!(!but_one.contains(&"deployment-controller"));
        // Upstream: what is named is wanted, whatever else is said.
        assert_eq!(running(&["-job", "job"]), ["job-controller"]);
    }

    #[test]
    fn the_scheduler_counts() {
        assert!(Selection::default().scheduler());
        assert!(!Selection::none().scheduler());
        assert!(Selection::new(["scheduler"]).unwrap().scheduler());
        assert!(!Selection::new(["*", "-scheduler"]).unwrap().scheduler());
        assert!(Selection::new(["-scheduler"]).unwrap().is_empty());
    }

    #[test]
    fn unknown_names_are_refused() {
        for bad in ["nothing", "", "-nothing", "controller"] {
            let error = Selection::new([bad]).unwrap_err();
            assert_eq!(error, format!("{bad:?} is not in the list of known controllers"));
        }
    }
}
