//! Images.

use super::sandbox::PodSandboxConfig;
use super::security::Int64Value;
use super::stats::FilesystemUsage;
use prost::Message;
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, Message)]
pub struct ImageSpec {
    #[prost(string, tag = 1)]
    pub image: String,
    #[prost(btree_map = "string, string", tag = 2)]
    pub annotations: BTreeMap<String, String>,
    #[prost(string, tag = 18)]
    pub user_specified_image: String,
    #[prost(string, tag = 19)]
    pub runtime_handler: String,
    #[prost(string, tag = 20)]
    pub image_ref: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListImagesRequest {
    #[prost(message, optional, tag = 1)]
    pub filter: Option<ImageFilter>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ImageFilter {
    #[prost(message, optional, tag = 1)]
    pub image: Option<ImageSpec>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListImagesResponse {
    #[prost(message, repeated, tag = 1)]
    pub images: Vec<Image>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Image {
    #[prost(string, tag = 1)]
    pub id: String,
    #[prost(string, repeated, tag = 2)]
    pub repo_tags: Vec<String>,
    #[prost(string, repeated, tag = 3)]
    pub repo_digests: Vec<String>,
    #[prost(uint64, tag = 4)]
    pub size: u64,
    #[prost(message, optional, tag = 5)]
    pub uid: Option<Int64Value>,
    #[prost(string, tag = 6)]
    pub username: String,
    #[prost(message, optional, tag = 7)]
    pub spec: Option<ImageSpec>,
    #[prost(bool, tag = 8)]
    pub pinned: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct ImageStatusRequest {
    #[prost(message, optional, tag = 1)]
    pub image: Option<ImageSpec>,
    #[prost(bool, tag = 2)]
    pub verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct ImageStatusResponse {
    #[prost(message, optional, tag = 1)]
    pub image: Option<Image>,
    #[prost(btree_map = "string, string", tag = 2)]
    pub info: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct AuthConfig {
    #[prost(string, tag = 1)]
    pub username: String,
    #[prost(string, tag = 2)]
    pub password: String,
    #[prost(string, tag = 3)]
    pub auth: String,
    #[prost(string, tag = 4)]
    pub server_address: String,
    #[prost(string, tag = 5)]
    pub identity_token: String,
    #[prost(string, tag = 6)]
    pub registry_token: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct PullImageRequest {
    #[prost(message, optional, tag = 1)]
    pub image: Option<ImageSpec>,
    #[prost(message, optional, tag = 2)]
    pub auth: Option<AuthConfig>,
    #[prost(message, optional, tag = 3)]
    pub sandbox_config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PullImageResponse {
    #[prost(string, tag = 1)]
    pub image_ref: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct RemoveImageRequest {
    #[prost(message, optional, tag = 1)]
    pub image: Option<ImageSpec>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RemoveImageResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct ImageFsInfoRequest {}

#[derive(Clone, PartialEq, Message)]
pub struct ImageFsInfoResponse {
    #[prost(message, repeated, tag = 1)]
    pub image_filesystems: Vec<FilesystemUsage>,
    #[prost(message, repeated, tag = 2)]
    pub container_filesystems: Vec<FilesystemUsage>,
}
