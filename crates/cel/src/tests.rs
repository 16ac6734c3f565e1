//! Expressions in, values, costs and refusals out.

mod estimates;
mod language;
mod limits;
