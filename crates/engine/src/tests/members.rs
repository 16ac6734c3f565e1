//! Updates that name the members that they touch store what others store, and see what others have written.

use super::*;
use kaji_meta::Status;
use kaji_resource::{FieldManagement, Members, ObjectReader, ObjectWriter, UpdateOptions};
use kaji_store::Range;

const TOUCHED: Members =
    &[("metadata", "name"), ("metadata", "namespace"), ("metadata", "labels"), ("data", "k")];

async fn update(world: &World, name: &str, members: Option<Members>) -> Result<Value, Status> {
    let options = UpdateOptions { members, ..UpdateOptions::new("", FieldManagement::Skip) };
    let change = |object: &mut Value| {
        if object["data"]["k"] == "refused" {
            return Err(Status::bad_request("refused"));
        }
        object["data"]["k"] = format!("{}+", object["data"]["k"].as_str().unwrap_or("-")).into();
        object["metadata"]["labels"]["new"] = "l".into();
        Ok(())
    };
    world.engine.update(&GroupResource::new("", "configmaps"), "ns", name, options, &change).await
}

async fn stored(world: &World, name: &str) -> String {
    let key = format!("/registry/core/configmaps/ns/{name}");
    let kvs = world.store.range(Range::key(key)).await.unwrap().kvs;
    kvs.iter().map(|kv| String::from_utf8_lossy(&kv.value).into_owned()).collect()
}

#[tokio::test]
async fn stores_what_an_update_of_the_whole_stores() {
    let world = World::new().await;
    for name in ["a", "b"] {
        world.put("ns", name, "x=y", &[("j", "0"), ("k", "1"), ("l", "2")]).await;
    }
    for _ in 0..3 {
        world.engine.sync().await.unwrap();
        let part = update(&world, "a", Some(TOUCHED)).await.unwrap();
        let whole = update(&world, "b", None).await.unwrap();
        assert_eq!(
            stored(&world, "a").await,
            stored(&world, "b").await.replace(r#""name":"b""#, r#""name":"a""#)
        );
        assert_eq!(part["data"]["k"], whole["data"]["k"]);
        // The answer has what was touched alone, and the revision.
        assert_eq!(part["data"]["j"], Value::Null);
        assert!(part["metadata"]["resourceVersion"].is_string());
    }
    // Also where the cache does not show it yet: the update is made again on what is stored.
    world.put("ns", "a", "", &[("k", "other")]).await;
    let part = update(&world, "a", Some(TOUCHED)).await.unwrap();
    assert_eq!(part["data"]["k"], "other+");
}

#[tokio::test]
async fn refuses_what_an_update_of_the_whole_refuses() {
    let world = World::new().await;
    world.put("ns", "a", "", &[("k", "refused")]).await;
    for name in ["a", "missing"] {
        let part = update(&world, name, Some(TOUCHED)).await.unwrap_err();
        let whole = update(&world, name, None).await.unwrap_err();
        assert_eq!(part.to_value(), whole.to_value());
    }
}
