//! Images of a CRI runtime.
//!
//! Invariant: a pull takes as long as it takes; the runtime reports no progress, and ends one that makes none itself.

use crate::connection::{ConnectError, Connection, Endpoints};
use crate::convert::{image, sandbox};
use crate::messages as cri;
use kaji_containers::{
    BoxFuture, Image, ImageFilesystems, ImageService, ImageSpec, PullRequest, RuntimeError,
};
use std::time::Duration;

/// Upstream's client has no deadline for pulls; this one ends what hangs for good.
const PULL: Duration = Duration::from_secs(24 * 3600);

/// The image service of a runtime, or another one.
pub struct CriImages {
    connection: Connection,
}

impl CriImages {
    /// The service at an endpoint. Nothing is connected yet.
    ///
    /// # Errors
    /// An endpoint that is no unix socket.
    pub fn at(endpoints: &Endpoints) -> Result<CriImages, ConnectError> {
        let endpoint = endpoints.images.as_deref().unwrap_or(&endpoints.runtime);
        Ok(CriImages { connection: Connection::new(endpoint)? })
    }

    async fn list(&self) -> Result<Vec<Image>, RuntimeError> {
        let method = "/runtime.v1.ImageService/ListImages";
        let answer: cri::ListImagesResponse =
            self.connection.call(method, cri::ListImagesRequest { filter: None }).await?;
        Ok(answer.images.into_iter().map(image::image).collect())
    }

    async fn status(&self, wanted: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        let method = "/runtime.v1.ImageService/ImageStatus";
        let request = cri::ImageStatusRequest { image: Some(image::spec(wanted)), verbose: false };
        let answer: Result<cri::ImageStatusResponse, _> = self.connection.call(method, request).await;
        match answer {
            Ok(answer) => Ok(answer.image.map(image::image)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn pull(&self, request: PullRequest) -> Result<String, RuntimeError> {
        let method = "/runtime.v1.ImageService/PullImage";
        let message = cri::PullImageRequest {
            image: Some(image::spec(&request.image)),
            auth: request.auth.as_ref().map(image::auth),
            sandbox_config: request.sandbox.as_ref().map(sandbox::config),
        };
        let answer: cri::PullImageResponse = self.connection.call_within(method, message, PULL).await?;
        Ok(answer.image_ref)
    }

    async fn remove(&self, unwanted: &ImageSpec) -> Result<(), RuntimeError> {
        let method = "/runtime.v1.ImageService/RemoveImage";
        let request = cri::RemoveImageRequest { image: Some(image::spec(unwanted)) };
        let answer: Result<cri::RemoveImageResponse, _> = self.connection.call(method, request).await;
        match answer {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    async fn usage(&self) -> Result<ImageFilesystems, RuntimeError> {
        let method = "/runtime.v1.ImageService/ImageFsInfo";
        let answer: cri::ImageFsInfoResponse =
            self.connection.call(method, cri::ImageFsInfoRequest {}).await?;
        let images: Vec<_> = answer.image_filesystems.into_iter().map(image::filesystem).collect();
        let containers: Vec<_> = answer.container_filesystems.into_iter().map(image::filesystem).collect();
        // Older runtimes have one for both.
        let containers = if containers.is_empty() { images.clone() } else { containers };
        Ok(ImageFilesystems { images, containers })
    }
}

impl ImageService for CriImages {
    fn list_images(&self) -> BoxFuture<'_, Result<Vec<Image>, RuntimeError>> {
        Box::pin(self.list())
    }

    fn image_status<'a>(
        &'a self,
        image: &'a ImageSpec,
    ) -> BoxFuture<'a, Result<Option<Image>, RuntimeError>> {
        Box::pin(self.status(image))
    }

    fn pull_image(&self, request: PullRequest) -> BoxFuture<'_, Result<String, RuntimeError>> {
        Box::pin(self.pull(request))
    }

    fn remove_image<'a>(&'a self, image: &'a ImageSpec) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(self.remove(image))
    }

    fn filesystems(&self) -> BoxFuture<'_, Result<ImageFilesystems, RuntimeError>> {
        Box::pin(self.usage())
    }
}
