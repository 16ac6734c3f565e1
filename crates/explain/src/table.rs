//! Columns of text.
//!
//! Invariant: no text of an object reaches a terminal with control characters.

use std::fmt::Write as _;

/// Rows as lines with aligned columns.
pub fn align<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // A String takes any text.
            let _ = write!(line, "{:width$}   ", plain(cell));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// A text on one line.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
