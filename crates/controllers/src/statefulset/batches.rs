//! The order in which the writes for several pods are made: a unit is the stages of one pod.
//!
//! Invariant: the stages of a unit keep their order.

use kaji_runtime::Step;

/// The most pods of one batch.
const MOST: usize = 500;

/// One unit after another.
pub fn one_by_one(units: Vec<Vec<Vec<Step>>>) -> Vec<Vec<Step>> {
    units.into_iter().flatten().collect()
}

/// Batches of 1, 2, 4 and more units; the stages of a batch run side by side: if all writes fail for one reason, few of them are made.
pub fn doubling(units: Vec<Vec<Vec<Step>>>) -> Vec<Vec<Step>> {
    let mut units = units.into_iter().filter(|unit| !unit.is_empty()).peekable();
    let (mut stages, mut size) = (vec![], 1);
    while units.peek().is_some() {
        let mut batch: Vec<Vec<Step>> = vec![];
        for unit in units.by_ref().take(size) {
            for (place, steps) in unit.into_iter().enumerate() {
                match batch.get_mut(place) {
                    Some(stage) => stage.extend(steps),
                    None => batch.push(steps),
                }
            }
        }
        stages.append(&mut batch);
        size = (size * 2).min(MOST);
    }
    stages
}
