//! Expressions in, values, costs and refusals out.

mod admission;
mod estimates;
mod language;
mod limits;
