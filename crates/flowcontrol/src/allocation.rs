//! Divides the server's seats among priority levels in proportion to what they want, within each one's bounds.
//! Source: KEP-1040, "Dispatching", the max-min-fair problem.

/// Targets below this count as this much, so that nothing divides by zero.
pub const LEAST_TARGET: f64 = 0.001;
const EPSILON: f64 = 1e-7;

/// One level's part of the problem; `low <= target` and `low <= high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item {
    /// What it would like.
    pub target: f64,
    /// What it gets at least.
    pub low: f64,
    /// What it gets at most.
    pub high: f64,
}

/// Why a problem has no solution.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Unsolvable {
    /// The bounds of an item contradict each other.
    #[error("item {0} has contradicting bounds")]
    Bounds(usize),
    /// Even the lower bounds are too much.
    #[error("lower bounds sum to {0}, which is higher than the required sum")]
    TooMuch(f64),
    /// Even the upper bounds are too little.
    #[error("upper bounds sum to {0}, which is lower than the required sum")]
    TooLittle(f64),
}

/// The allocations, which sum to `sum`, and the one proportion p such that each is `p * target` cut to its bounds.
pub fn allocate(sum: f64, items: &[Item]) -> Result<(Vec<f64>, f64), Unsolvable> {
    for (i, item) in items.iter().enumerate() {
        if item.low < 0.0 || item.target < item.low || item.high < item.low {
            return Err(Unsolvable::Bounds(i));
        }
    }
    let lows: f64 = items.iter().map(|i| i.low).sum();
    let highs: f64 = items.iter().map(|i| i.high).sum();
    if lows - sum > EPSILON {
        return Err(Unsolvable::TooMuch(lows));
    }
    if sum - highs > EPSILON {
        return Err(Unsolvable::TooLittle(highs));
    }
    if sum == 0.0 {
        return Ok((vec![0.0; items.len()], 0.0));
    }
    let p = proportion(sum, items);
    Ok((items.iter().map(|i| at(p, i)).collect(), p))
}

fn at(p: f64, item: &Item) -> f64 {
    (p * item.target.max(LEAST_TARGET)).clamp(item.low, item.high)
}

/// The total at p never falls as p grows, and is straight between the points where a bound begins or ends to matter.
fn proportion(sum: f64, items: &[Item]) -> f64 {
    let mut turns: Vec<f64> =
        items.iter().flat_map(|i| [i.low, i.high].map(|bound| bound / i.target.max(LEAST_TARGET))).collect();
    turns.sort_by(f64::total_cmp);
    let total = |p: f64| items.iter().map(|i| at(p, i)).sum::<f64>();
    let mut before = turns.first().copied().unwrap_or_default();
    let mut total_before = total(before);
    for turn in turns {
        let total_here = total(turn);
        if total_here >= sum {
            let rise = total_here - total_before;
            return if rise > 0.0 { before + (turn - before) * (sum - total_before) / rise } else { turn };
        }
        (before, total_before) = (turn, total_here);
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn item(target: f64, low: f64, high: f64) -> Item {
        Item { target, low, high }
    }

    #[test]
    fn shares_follow_targets_within_bounds() {
        let (got, p) = allocate(100.0, &[item(10.0, 0.0, 200.0), item(40.0, 0.0, 200.0)]).unwrap();
        assert_eq!((got, p), (vec![20.0, 80.0], 2.0));
        // What the second may not have goes to the others.
        let (got, _) =
            allocate(100.0, &[item(10.0, 5.0, 200.0), item(40.0, 0.0, 30.0), item(0.0, 0.0, 200.0)]).unwrap();
        assert!((got[0] - 70.0).abs() < 0.01 && got[1] == 30.0, "{got:?}");
        assert!(matches!(allocate(5.0, &[item(10.0, 10.0, 20.0)]), Err(Unsolvable::TooMuch(_))));
        assert!(matches!(allocate(50.0, &[item(10.0, 10.0, 20.0)]), Err(Unsolvable::TooLittle(_))));
    }

    proptest! {
        #[test]
        fn allocations_sum_up_and_keep_their_bounds(
            raw in prop::collection::vec((0.0..50.0_f64, 0.0..50.0_f64, 0.0..50.0_f64), 1..8),
            part in 0.0..1.0_f64,
        ) {
            let items: Vec<Item> = raw.iter().map(|(low, more, room)| item(low + more, *low, low + room)).collect();
            let lows: f64 = items.iter().map(|i| i.low).sum();
            let highs: f64 = items.iter().map(|i| i.high).sum();
            let sum = lows + part * (highs - lows);
            let (got, p) = allocate(sum, &items).unwrap();
            prop_assert!((got.iter().sum::<f64>() - sum).abs() < 1e-4);
            for (got, item) in got.iter().zip(&items) {
                prop_assert!(*got >= item.low - 1e-9 && *got <= item.high + 1e-9);
                prop_assert_eq!(*got, at(p, item));
            }
        }
    }
}
