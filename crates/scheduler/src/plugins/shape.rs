//! A score as a function of utilization: linear between the points of a shape, constant outside of them.
//!
//! Invariant: the points of a valid shape have growing utilizations, so that no piece is vertical.

use super::arguments::{items, number};
use crate::framework::points::MAX_SCORE;
use kaji_meta::field::{Error, ErrorList, Path};
use serde_json::Value;

/// The best score in a configured shape.
pub const MAX_SHAPE_SCORE: i64 = 10;

/// Points of utilization, in percent, and score up to [`MAX_SCORE`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape(Vec<(i64, i64)>);

/// The points of a configuration.
fn points(raw: &Value) -> Vec<(i64, i64)> {
    items(raw).map(|point| (number(point, "utilization", 0), number(point, "score", 0))).collect()
}

/// What is wrong with the points of a configuration.
pub fn validate(raw: &Value, path: &Path) -> ErrorList {
    let points = points(raw);
    if points.is_empty() {
        return vec![Error::required(path, "at least one point must be specified")];
    }
    let mut errors = vec![];
    if let Some(place) = (1..points.len()).find(|place| points[place - 1].0 >= points[*place].0) {
        let path = path.index(place).child("utilization");
        errors.push(Error::invalid(&path, points[place].0, "values must be sorted in increasing order"));
    }
    for (place, (utilization, score)) in points.into_iter().enumerate() {
        let path = path.index(place);
        for (field, value, most) in [("utilization", utilization, 100), ("score", score, MAX_SHAPE_SCORE)] {
            if !(0..=most).contains(&value) {
                let why = format!("not in valid range [0, {most}]");
                errors.push(Error::invalid(&path.child(field), value, why));
            }
        }
    }
    errors
}

impl Shape {
    /// Of a configuration's points, which are valid.
    pub fn parse(raw: &Value) -> Self {
        let scaled = |(utilization, score)| (utilization, score * (MAX_SCORE / MAX_SHAPE_SCORE));
        Shape(points(raw).into_iter().map(scaled).collect())
    }

    /// The less is used, the better.
    pub fn least_used() -> Self {
        Shape(vec![(0, MAX_SCORE), (100, 0)])
    }

    /// The score when so much of so much is requested. What has nothing is used up, and so is what has too little.
    pub fn score(&self, requested: i64, capacity: i64) -> i64 {
        self.at(if capacity <= 0 { 100 } else { percent(requested.min(capacity), capacity) })
    }

    fn at(&self, utilization: i64) -> i64 {
        let mut before: Option<(i64, i64)> = None;
        for &(at, score) in &self.0 {
            if utilization <= at {
                return match before {
                    None => score,
                    Some((from, low)) => low + (score - low) * (utilization - from) / (at - from),
                };
            }
            before = Some((at, score));
        }
        before.map_or(0, |(_, score)| score)
    }
}

/// A part of a whole, in percent, rounded down.
pub fn percent(part: i64, whole: i64) -> i64 {
    let percent = i128::from(part) * 100 / i128::from(whole.max(1));
    i64::try_from(percent).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_linear_between_points_and_constant_outside() {
        let raw = serde_json::json!([{"utilization": 20, "score": 1}, {"utilization": 60, "score": 9}]);
        let shape = Shape::parse(&raw);
        let scores: Vec<i64> = [(0, 100), (20, 100), (30, 100), (60, 100), (99, 100), (101, 100), (0, 0)]
            .map(|(r, c)| shape.score(r, c))
            .into();
        assert_eq!(scores, [10, 10, 30, 90, 90, 90, 90]);
        assert_eq!(Shape::least_used().score(25, 100), 75);
        assert_eq!(Shape::least_used().score(i64::MAX, i64::MAX), 0);
    }
}
