//! The smallest operator there is: it lists the `samples.example.com` of all namespaces each second and prints them.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "printing is all it does")]

use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), kube::Error> {
    // The cluster of the kubeconfig; inside of a pod, the one that the pod is in.
    let client = Client::try_default().await?;
    // No type stands for the kind: its name is enough, and objects are JSON.
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Sample"));
    let samples: Api<DynamicObject> = Api::all_with(client, &kind);
    let mut each_second = tokio::time::interval(Duration::from_secs(1));
    loop {
        each_second.tick().await;
        match samples.list(&ListParams::default()).await {
            Ok(list) => {
                println!("{} samples", list.items.len());
                for sample in list {
                    let (namespace, name) = (sample.namespace().unwrap_or_default(), sample.name_any());
                    println!("  {namespace}/{name}: {}", sample.data["spec"]);
                }
            }
            // It may be gone by the next second.
            Err(error) => eprintln!("cannot list samples: {error}"),
        }
    }
}
