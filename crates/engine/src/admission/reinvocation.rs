//! The second round of mutating plugins: what a webhook or policy has changed, those before it may want to see.
//!
//! Invariants: there is one further round at most; in it the plugins of the server itself run as ever, and those that carry
//! out what users have configured decide by what they noted in the first round what they call again.
//!
//! Source: upstream's `ReinvocationContext` of k8s.io/apiserver/pkg/admission.

use std::any::Any;

/// What plugins note about a write in its mutating phase.
#[derive(Default)]
pub struct Reinvocation {
    wanted: bool,
    second: bool,
    notes: Vec<(&'static str, Box<dyn Any + Send + Sync>)>,
}

impl Reinvocation {
    /// Asks for a second round. Means nothing during it.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// Whether this is the second round.
    pub fn is_second(&self) -> bool {
        self.second
    }

    /// What a plugin, by its name, has noted; made if it has not noted anything.
    pub fn note<T: Any + Send + Sync + Default>(&mut self, plugin: &'static str) -> Option<&mut T> {
        let at = match self.notes.iter().position(|(name, _)| *name == plugin) {
            Some(at) => at,
            None => {
                self.notes.push((plugin, Box::<T>::default()));
                self.notes.len() - 1
            }
        };
        self.notes.get_mut(at)?.1.downcast_mut()
    }

    /// Begins the second round, if one is wanted and has not been.
    pub(crate) fn begin(&mut self) -> bool {
        let begins = self.wanted && !self.second;
        self.second |= begins;
        begins
    }
}
