//! Expressions in, results out.

mod language;
