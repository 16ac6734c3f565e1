//! What plugins keep of one pod from one extension point to the next.
//!
//! Invariant: a plugin finds what it has written itself, by type; a copy is independent of the original.

use std::any::{Any, TypeId};

trait StateData: Send + Sync {
    fn copy(&self) -> Box<dyn StateData>;
    fn any(&self) -> &dyn Any;
    fn any_mut(&mut self) -> &mut dyn Any;
}

impl<T: Any + Clone + Send + Sync> StateData for T {
    fn copy(&self) -> Box<dyn StateData> {
        Box::new(self.clone())
    }

    fn any(&self) -> &dyn Any {
        self
    }

    fn any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// The state of one attempt to schedule one pod.
#[derive(Default)]
pub struct CycleState {
    kept: Vec<(TypeId, Box<dyn StateData>)>,
    /// Whether each plugin's time is taken.
    pub timed: bool,
    /// Plugins that have nothing to filter, a bit each by their place in the profile.
    pub(super) skip_filter: u64,
    /// Plugins that have nothing to score.
    pub(super) skip_score: u64,
}

impl Clone for CycleState {
    fn clone(&self) -> Self {
        let kept = self.kept.iter().map(|(id, kept)| (*id, (**kept).copy())).collect();
        let CycleState { timed, skip_filter, skip_score, .. } = *self;
        CycleState { kept, timed, skip_filter, skip_score }
    }
}

impl CycleState {
    /// Of an attempt in which each plugin's time is taken, or is not.
    pub fn new(timed: bool) -> Self {
        CycleState { timed, ..CycleState::default() }
    }

    /// Keeps a value; a former one of the same type is replaced.
    pub fn put<T: Any + Clone + Send + Sync>(&mut self, value: T) {
        let id = TypeId::of::<T>();
        self.kept.retain(|(kept, _)| *kept != id);
        self.kept.push((id, Box::new(value)));
    }

    /// The value of a type.
    pub fn get<T: Any + Clone + Send + Sync>(&self) -> Option<&T> {
        let id = TypeId::of::<T>();
        let (_, kept) = self.kept.iter().find(|(kept, _)| *kept == id)?;
        (**kept).any().downcast_ref()
    }

    /// The value of a type, to change it.
    pub fn get_mut<T: Any + Clone + Send + Sync>(&mut self) -> Option<&mut T> {
        let id = TypeId::of::<T>();
        let (_, kept) = self.kept.iter_mut().find(|(kept, _)| *kept == id)?;
        (**kept).any_mut().downcast_mut()
    }
}
