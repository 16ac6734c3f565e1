//! The progress of `kaji image pull` on a terminal: one line that is written over, and removed at the end.

use futures_util::future::{Either, select};
use kaji_containers::PullProgress;
use std::future::Future;
use std::io::Write;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::watch;

/// Between two lines.
const PAUSE: Duration = Duration::from_millis(200);
/// Back to the beginning of the line, which is erased.
const ERASE: &str = "\r\x1b[K";

/// Drives a pull, and shows its progress meanwhile.
pub async fn shown<T>(
    pull: impl Future<Output = T>,
    progress: watch::Receiver<PullProgress>,
    terminal: &mut impl Write,
) -> T {
    let mut pull = pin!(pull);
    loop {
        // The pull comes first: the last line is never shown after its end.
        match select(pull.as_mut(), pin!(tokio::time::sleep(PAUSE))).await {
            Either::Left((outcome, _)) => {
                draw(terminal, "");
                return outcome;
            }
            Either::Right(_) => draw(terminal, &line(&progress.borrow())),
        }
    }
}

fn draw(terminal: &mut impl Write, line: &str) {
    let written = write!(terminal, "{ERASE}{line}").and_then(|()| terminal.flush());
    if let Err(error) = written {
        tracing::debug!(%error, "the progress of a pull cannot be shown");
    }
}

fn line(progress: &PullProgress) -> String {
    if progress.total == 0 {
        return "asking the registry".into();
    }
    let megabytes = |bytes: u64| format!("{}.{}", bytes / 1_000_000, bytes / 100_000 % 10);
    format!(
        "{} of {} MB, {} of {} layers unpacked",
        megabytes(progress.received),
        megabytes(progress.total),
        progress.unpacked_layers,
        progress.layers
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_follows_the_pull_and_goes_with_it() {
        let (sender, watched) = watch::channel(PullProgress::default());
        let pull = async {
            tokio::time::sleep(PAUSE * 3 / 2).await;
            sender.send_replace(PullProgress {
                received: 1_250_000,
                total: 30_000_000,
                unpacked_layers: 1,
                layers: 4,
            });
            tokio::time::sleep(PAUSE).await;
            7
        };
        let mut terminal = vec![];
        assert_eq!(shown(pull, watched, &mut terminal).await, 7);
        expect_test::expect![[r#"
            asking the registry|1.2 of 30.0 MB, 1 of 4 layers unpacked|"#]]
        .assert_eq(&String::from_utf8(terminal).unwrap().trim_start_matches(ERASE).replace(ERASE, "|"));
    }
}
