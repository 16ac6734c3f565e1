//! Which controllers run: `--controllers` of kube-controller-manager.
//!
//! Invariant: a name that no controller has is refused, never ignored.

/// What is there besides controllers and may be wanted or not all the same.
const SCHEDULER: &str = "scheduler";

/// Everything that no other item names.
const OTHERS: &str = "*";

/// Which controllers run: `*` for all that are not named, `-*` for none of those, `name` for one, `-name` for all but one;
/// of several items about one controller the first counts. The `-controller` at a name's end and its dashes may be left out,
/// as in upstream's old names (`garbagecollector`). An empty list is for none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// What is said about controllers by name.
    named: Vec<(String, bool)>,
    /// Whether the others run.
    others: bool,
}

impl Default for Selection {
    /// All of them.
    fn default() -> Self {
        Selection { named: vec![], others: true }
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
        let items: Vec<S> = items.into_iter().collect();
        if let [only] = &items[..]
            && only.as_ref().trim().is_empty()
        {
            return Ok(Selection::none());
        }
        let (mut named, mut others) = (vec![], None);
        for item in &items {
            let item = item.as_ref().trim();
            let (name, runs) = item.strip_prefix('-').map_or((item, true), |name| (name, false));
            if name == OTHERS {
                others.get_or_insert(runs);
            } else if name == SCHEDULER || crate::names().any(|known| plain(known) == plain(name)) {
                named.push((plain(name), runs));
            } else {
                return Err(format!("{item:?} is not in the list of known controllers"));
            }
        }
        Ok(Selection { named, others: others.unwrap_or(false) })
    }

    /// None of them.
    pub fn none() -> Selection {
        Selection { named: vec![], others: false }
    }

    /// Whether a controller runs.
    pub fn includes(&self, name: &str) -> bool {
        let name = plain(name);
        self.named.iter().find(|(named, _)| *named == name).map_or(self.others, |(_, runs)| *runs)
    }

    /// Whether pods are given nodes.
    pub fn scheduler(&self) -> bool {
        self.includes(SCHEDULER)
    }

    /// Whether a controller runs, the scheduler aside.
    pub fn controllers(&self) -> bool {
        self.others || self.named.iter().any(|(name, runs)| *runs && name != SCHEDULER)
    }

    /// Whether nothing runs.
    pub fn is_empty(&self) -> bool {
        !self.others && !self.named.iter().any(|(name, _)| self.includes(name))
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
    fn selects_as_upstream() {
        assert_eq!(running(&["*"]).len(), crate::names().count());
        assert_eq!(running(&[]), Vec::<&str>::new());
        assert_eq!(
            running(&["garbagecollector", "namespace-controller", "endpoint-slice"]),
            ["endpointslice-controller", "garbage-collector-controller", "namespace-controller"]
        );
        let but_one = running(&["*", "-deployment-controller"]);
        assert_eq!(but_one.len(), crate::names().count() - 1);
        assert!(!but_one.contains(&"deployment-controller"));
        // Upstream: the first item about a controller counts.
        assert_eq!(running(&["-job", "job"]), Vec::<&str>::new());
        assert_eq!(running(&["job", "-job"]), ["job-controller"]);
        assert_eq!(running(&["*", "-*"]).len(), crate::names().count());
    }

    #[test]
    fn disables_all() {
        for none in [&[""][..], &["-*"], &["-*", "*"], &["-*", "-scheduler"], &["-job", "job"]] {
            let selection = Selection::new(none).unwrap();
            assert!(selection.is_empty(), "{none:?}");
            assert!(!selection.scheduler() && running(none).is_empty(), "{none:?}");
        }
        assert_eq!(running(&["-*", "job"]), ["job-controller"]);
        assert!(!Selection::new(["-*", "scheduler"]).unwrap().is_empty());
    }

    #[test]
    fn selects_the_scheduler() {
        assert!(Selection::default().scheduler());
        assert!(!Selection::none().scheduler());
        assert!(Selection::new(["scheduler"]).unwrap().scheduler());
        assert!(!Selection::new(["*", "-scheduler"]).unwrap().scheduler());
        assert!(Selection::new(["-scheduler"]).unwrap().is_empty());
    }

    #[test]
    fn rejects_unknown_names() {
        for bad in ["nothing", "-", "-nothing", "controller", "--*", "**"] {
            let error = Selection::new([bad]).unwrap_err();
            assert_eq!(error, format!("{bad:?} is not in the list of known controllers"));
        }
        assert_eq!(Selection::new(["job", ""]).unwrap_err(), "\"\" is not in the list of known controllers");
    }
}
