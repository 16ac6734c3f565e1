//! Which nodes a cluster brings along.

use std::str::FromStr;

/// `--nodes`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// None: a control plane alone.
    None,
    /// So many simulated nodes.
    Simulated(u16),
}

/// More nodes than one process should pretend to be.
const MOST: u16 = 5000;

impl FromStr for Nodes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "none" => Ok(Nodes::None),
            None if text == "real" => {
                Err("real nodes need a container runtime, which this version does not drive yet; use sim:N or none".into())
            }
            Some(("sim", count)) => match count.parse() {
                Ok(0) => Ok(Nodes::None),
                Ok(n) if n <= MOST => Ok(Nodes::Simulated(n)),
                _ => Err(format!("sim:N takes a number up to {MOST}")),
            },
            _ => Err("expected sim:N or none".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Nodes;

    #[test]
    fn the_flag_parses() {
        assert_eq!("sim:3".parse(), Ok(Nodes::Simulated(3)));
        assert_eq!("none".parse(), Ok(Nodes::None));
        for bad in ["", "sim", "sim:x", "sim:99999", "real", "sim:-1"] {
            assert!(bad.parse::<Nodes>().is_err(), "{bad}");
        }
    }
}
