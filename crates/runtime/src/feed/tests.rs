//! Tests of how bodies become objects and events.

use super::*;
use expect_test::expect;

fn frames(pieces: &[&str]) -> Frames {
    let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Bytes::from((*piece).to_owned()))).collect();
    stream::iter(pieces).boxed()
}

async fn shown<T: std::fmt::Debug>(parts: BoxStream<'static, T>) -> String {
    parts.map(|part| format!("{part:?}\n")).collect().await
}

const ADDED: &str = "{\"type\":\"ADDED\",\"object\":{\"a\":1}}\n";
const DELETED: &str = "{\"type\":\"DELETED\",\"object\":{\"a\":2}}\n";
const BOOKMARK: &str = "{\"type\":\"BOOKMARK\",\"object\":{}}\n";
const ERROR: &str = "{\"object\":{\"code\":410},\"type\":\"ERROR\"}\n";

#[tokio::test]
async fn frames_of_one_event_are_a_batch_when_they_are_ready_together() {
    let events = shown(separate_events(frames(&[ADDED, DELETED, BOOKMARK, ERROR]))).await;
    expect![[r#"
        Ok([Changed(b"{\"a\":1}"), Deleted(b"{\"a\":2}"), Bookmark(b"{}"), Failed(b"{\"code\":410}")])
    "#]]
    .assert_eq(&events);
}

#[tokio::test]
async fn a_frame_that_is_not_one_event_is_an_error() {
    for piece in ["", "{\"type\":\"ADDED\"}\n", &format!("{BOOKMARK}{BOOKMARK}")] {
        let events = shown(separate_events(frames(&[piece]))).await;
        assert!(events.starts_with("Err(Decode("), "{events}");
    }
}

#[tokio::test]
async fn events_are_found_however_the_stream_is_cut() {
    let text = [ADDED, DELETED, BOOKMARK, ERROR].concat();
    let whole: Vec<_> = split_events(frames(&[&text])).map(Result::unwrap).concat().await;
    assert_eq!(whole.len(), 4);
    for size in 1..text.len() {
        let pieces: Vec<&str> =
            text.as_bytes().chunks(size).map(|p| std::str::from_utf8(p).unwrap()).collect();
        let cut: Vec<_> = split_events(frames(&pieces)).map(Result::unwrap).concat().await;
        assert_eq!(cut, whole, "in pieces of {size} bytes");
    }
}

#[tokio::test]
async fn a_watch_ends_with_its_transport_and_a_list_fails_with_it() {
    let lost = || stream::iter([Err(Error::Transport("lost".into()))]);
    let watch = |begin: &str| frames(&[begin]).chain(lost()).boxed();
    assert_eq!(shown(separate_events(watch(ADDED))).await.lines().count(), 1);
    assert_eq!(shown(split_events(watch(ADDED))).await.lines().count(), 1);
    let list = shown(split_list(watch("{\"metadata\":{},\"items\":[{\"a\":1},"))).await;
    expect![[r#"
        Ok(Metadata(b"{}"))
        Ok(Object(b"{\"a\":1}"))
        Err(Transport("lost"))
    "#]]
    .assert_eq(&list);
    let list = shown(separate_list(watch("{}"))).await;
    expect![[r#"
        Ok(Metadata(b"{}"))
        Err(Transport("lost"))
    "#]]
    .assert_eq(&list);
}

#[tokio::test]
async fn a_refusal_is_its_status() {
    let status = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"no","code":403}"#;
    assert_eq!(refusal(403, frames(&[status])).await.code(), Some(403));
    let text = refusal(502, frames(&["bad ", "gateway"])).await.to_string();
    assert_eq!(text, "transport: HTTP 502: bad gateway");
}
